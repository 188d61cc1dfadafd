//! The server's half of a SOCKS5 negotiation (RFC 1928), without sockets.
//!
//! Offers the method "no authentication" and the command CONNECT, to IPv4 and IPv6 addresses and
//! to host names; a name is passed through for the cloud to resolve. BIND and UDP ASSOCIATE are
//! answered "command not supported". After any [`Negotiation::receive`] the caller polls
//! [`Negotiation::poll`], then sends [`Negotiation::output`].
//!
//! ```text
//! Greeting ---> Request ---+--> Waiting --dialed()--> Done        (reply = dialed)
//!    |             |       +-------------------------> Done       (reply = immediate)
//!    +-------------+---------------> Failed: send the output, then close
//! ```
//!
//! Invariants: bytes after the request are never consumed, because they are the flow's first data;
//! events and output do not depend on how the input is split; at most [`INPUT_MAX`] bytes are
//! buffered.

use std::net::{IpAddr, SocketAddr};

use polyrail_model::{Destination, HostName};
use polyrail_session::ResetReason;

use polyrail_config::SocksReply;

/// The REP field (RFC 1928 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplyCode {
    /// Succeeded.
    Succeeded = 0,
    /// General SOCKS server failure.
    GeneralFailure = 1,
    /// Connection not allowed by ruleset.
    NotAllowed = 2,
    /// Network unreachable.
    NetworkUnreachable = 3,
    /// Host unreachable.
    HostUnreachable = 4,
    /// Connection refused.
    ConnectionRefused = 5,
    /// TTL expired; the usual code for a dial that timed out.
    TtlExpired = 6,
    /// Command not supported.
    CommandNotSupported = 7,
    /// Address type not supported.
    AddressTypeNotSupported = 8,
}

/// Why a negotiation failed; for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The first byte of a message was not 5.
    #[error("the client speaks SOCKS version {0}, not 5")]
    Version(u8),
    /// The client requires authentication.
    #[error("the client offers no method without authentication")]
    NoMethod,
    /// A command other than CONNECT.
    #[error("command {0} is not supported, only CONNECT is")]
    Command(u8),
    /// An address type other than IPv4, IPv6 and domain name.
    #[error("address type {0} is not supported")]
    AddressType(u8),
    /// The name is not a host name.
    #[error("the requested name is not a host name")]
    Name,
    /// The port is zero.
    #[error("port 0 cannot be connected to")]
    Port,
    /// The dial failed; only with [`SocksReply::Dialed`].
    #[error("the dial failed: {0:?}")]
    Dial(ReplyCode),
}

/// A request of a negotiation to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocksEvent {
    /// Open a flow to the destination. Further bytes of the client belong to the flow.
    Connect(Destination),
    /// Send the output, then close the connection.
    Failed(Failure),
}

/// One client's negotiation.
#[derive(Debug)]
pub struct Negotiation {
    policy: SocksReply,
    state: NegotiationState,
    /// The unfinished message of the client; at most [`INPUT_MAX`] bytes.
    input: Vec<u8>,
    output: Vec<u8>,
    event: Option<SocksEvent>,
}

/// The longest message of a client: a greeting with 255 methods (257), or a request with a name
/// of 255 bytes (262).
pub const INPUT_MAX: usize = 4 + 1 + 255 + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NegotiationState {
    Greeting,
    Request,
    Waiting,
    Done,
    Failed,
}

/// The parsed message; `None` while it is incomplete.
type Parsed<T> = Result<Option<T>, Failure>;

impl Negotiation {
    /// A new negotiation.
    pub fn new(policy: SocksReply) -> Self {
        let state = NegotiationState::Greeting;
        Self { policy, state, input: Vec::new(), output: Vec::new(), event: None }
    }

    /// Takes bytes from the client and returns how many belong to the negotiation. The rest is
    /// the flow's first data. After a failure everything is consumed and ignored.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut consumed = 0;
        while matches!(self.state, NegotiationState::Greeting | NegotiationState::Request) {
            let Some(&byte) = bytes.get(consumed) else { return consumed };
            // Byte by byte, because a message's own fields define its end.
            self.input.push(byte);
            consumed += 1;
            self.step();
        }
        if self.state == NegotiationState::Failed { bytes.len() } else { consumed }
    }

    /// The next event. At most one [`SocksEvent::Connect`]; [`SocksEvent::Failed`] is the last.
    pub fn poll(&mut self) -> Option<SocksEvent> {
        self.event.take()
    }

    /// With [`SocksReply::Dialed`]: the cloud has dialed, or failed with the given code. Later
    /// calls, and calls under the other policy, change nothing.
    pub fn dialed(&mut self, result: Result<(), ReplyCode>) {
        if self.state != NegotiationState::Waiting {
            return;
        }
        match result {
            Ok(()) => {
                self.reply(ReplyCode::Succeeded);
                self.state = NegotiationState::Done;
            }
            Err(code) => self.fail(Failure::Dial(code)),
        }
    }

    /// The bytes to send to the client now.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// The first `sent` bytes of the output were sent.
    ///
    /// # Panics
    /// More was sent than there was.
    pub fn sent(&mut self, sent: usize) {
        self.output.drain(..sent);
    }

    /// The success reply is in the output: relay data both ways once it is sent. Until then bytes
    /// of the server must wait, or they would precede the reply.
    pub fn is_done(&self) -> bool {
        self.state == NegotiationState::Done
    }

    /// The negotiation failed: close when the output is sent.
    pub fn is_failed(&self) -> bool {
        self.state == NegotiationState::Failed
    }

    fn step(&mut self) {
        let parsed = match self.state {
            NegotiationState::Greeting => parse_greeting(&self.input).map(|greeting| {
                if greeting.is_some() {
                    self.output.extend([VERSION, METHOD_NONE]);
                    self.input.clear();
                    self.state = NegotiationState::Request;
                }
            }),
            _ => parse_request(&self.input).map(|request| {
                if let Some(destination) = request {
                    self.connect(destination);
                }
            }),
        };
        if let Err(failure) = parsed {
            self.fail(failure);
        }
    }

    fn connect(&mut self, destination: Destination) {
        self.input = Vec::new();
        self.event = Some(SocksEvent::Connect(destination));
        self.state = match self.policy {
            SocksReply::Immediate => {
                self.reply(ReplyCode::Succeeded);
                NegotiationState::Done
            }
            SocksReply::Dialed => NegotiationState::Waiting,
        };
    }

    fn fail(&mut self, failure: Failure) {
        match (self.state, failure.reply_code()) {
            (NegotiationState::Greeting, _) => self.output.extend([VERSION, METHOD_UNACCEPTABLE]),
            (_, code) => self.reply(code),
        }
        self.input = Vec::new();
        self.state = NegotiationState::Failed;
        self.event = Some(SocksEvent::Failed(failure));
    }

    /// Replies with 0.0.0.0:0 as the bound address: the cloud's address is useless on board.
    fn reply(&mut self, code: ReplyCode) {
        self.output.extend([VERSION, code as u8, 0, ADDRESS_V4, 0, 0, 0, 0, 0, 0]);
    }
}

impl From<ResetReason> for ReplyCode {
    /// The reply to a client whose flow was reset before the cloud had dialed.
    fn from(reason: ResetReason) -> Self {
        match reason {
            ResetReason::Refused => Self::ConnectionRefused,
            ResetReason::Unreachable | ResetReason::NameNotFound => Self::HostUnreachable,
            ResetReason::TimedOut => Self::TtlExpired,
            ResetReason::Forbidden => Self::NotAllowed,
            ResetReason::SessionLost => Self::NetworkUnreachable,
            ResetReason::PeerReset
            | ResetReason::Overload
            | ResetReason::Quota
            | ResetReason::Idle
            | ResetReason::Protocol
            | ResetReason::Internal => Self::GeneralFailure,
        }
    }
}

impl Failure {
    /// The reply code, if the client has sent a request.
    fn reply_code(self) -> ReplyCode {
        match self {
            Self::Version(_) | Self::NoMethod | Self::Port => ReplyCode::GeneralFailure,
            Self::Command(_) => ReplyCode::CommandNotSupported,
            Self::AddressType(_) => ReplyCode::AddressTypeNotSupported,
            Self::Name => ReplyCode::HostUnreachable,
            Self::Dial(code) => code,
        }
    }
}

/// VER, NMETHODS, METHODS (RFC 1928 3).
fn parse_greeting(input: &[u8]) -> Parsed<()> {
    match input {
        [version, ..] if *version != VERSION => Err(Failure::Version(*version)),
        [_, count, methods @ ..] if methods.len() >= usize::from(*count) => {
            methods.contains(&METHOD_NONE).then_some(Some(())).ok_or(Failure::NoMethod)
        }
        _ => Ok(None),
    }
}

/// VER, CMD, RSV, ATYP, DST.ADDR, DST.PORT (RFC 1928 4). RSV is ignored.
fn parse_request(input: &[u8]) -> Parsed<Destination> {
    let (kind, rest) = match input {
        [version, ..] if *version != VERSION => return Err(Failure::Version(*version)),
        [_, command, ..] if *command != COMMAND_CONNECT => return Err(Failure::Command(*command)),
        [_, _, _, kind, rest @ ..] => (*kind, rest),
        _ => return Ok(None),
    };
    let (length, rest) = match (kind, rest) {
        (ADDRESS_V4, rest) => (4, rest),
        (ADDRESS_V6, rest) => (16, rest),
        (ADDRESS_NAME, [0, ..]) => return Err(Failure::Name),
        (ADDRESS_NAME, [length, rest @ ..]) => (usize::from(*length), rest),
        (ADDRESS_NAME, []) => return Ok(None),
        (other, _) => return Err(Failure::AddressType(other)),
    };
    let Some((host, [high, low, ..])) = rest.split_at_checked(length) else { return Ok(None) };
    let port = u16::from_be_bytes([*high, *low]);
    let address = match kind {
        ADDRESS_V4 => <[u8; 4]>::try_from(host).map(IpAddr::from).ok(),
        ADDRESS_V6 => <[u8; 16]>::try_from(host).map(IpAddr::from).ok(),
        // Some clients send addresses as text in the name field.
        _ => std::str::from_utf8(host).ok().and_then(|text| text.parse().ok()),
    };
    let destination = match address {
        Some(ip) => Destination::Address(SocketAddr::new(ip.to_canonical(), port)),
        None => {
            let text = std::str::from_utf8(host).map_err(|_| Failure::Name)?;
            Destination::Name(HostName::new(text).map_err(|_| Failure::Name)?, port)
        }
    };
    if port == 0 { Err(Failure::Port) } else { Ok(Some(destination)) }
}

const VERSION: u8 = 5;
const METHOD_NONE: u8 = 0x00;
const METHOD_UNACCEPTABLE: u8 = 0xff;
const COMMAND_CONNECT: u8 = 1;
const ADDRESS_V4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_V6: u8 = 4;

#[cfg(test)]
mod tests;
