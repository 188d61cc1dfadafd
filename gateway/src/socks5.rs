//! The server's half of a SOCKS5 negotiation (RFC 1928), without sockets.
//!
//! Offers the method "no authentication" and the commands CONNECT, to IPv4 and IPv6 addresses and
//! to host names, and UDP ASSOCIATE; a name is passed through for the cloud to resolve. BIND is
//! answered "command not supported". After any [`Negotiation::receive`] the caller polls
//! [`Negotiation::poll`], then sends [`Negotiation::output`].
//!
//! ```text
//! Greeting ---> Request ---+--> Waiting --dialed()--> Done        (reply = dialed)
//!    |             |       +-------------------------> Done       (reply = immediate)
//!    |             |       +--> Associating --associated()--> Done
//!    +-------------+---------------> Failed: send the output, then close
//! ```
//!
//! Invariants: bytes after the request are never consumed, because they are the flow's first data;
//! events and output do not depend on how the input is split; at most [`INPUT_MAX`] bytes are
//! buffered.

mod address;
pub mod udp_header;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use polyrail_config::SocksReply;
use polyrail_model::Destination;
use polyrail_session::ResetReason;

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
    /// A command other than CONNECT and UDP ASSOCIATE.
    #[error("command {0} is not supported, only CONNECT and UDP ASSOCIATE are")]
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
    /// There is no relay for the client's datagrams.
    #[error("no relay for UDP: {0:?}")]
    Association(ReplyCode),
}

/// A request of a negotiation to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocksEvent {
    /// Open a flow to the destination. Further bytes of the client belong to the flow.
    Connect(Destination),
    /// Relay the client's datagrams, which it sends from this port; from any if it is 0. Then call
    /// [`Negotiation::associated`].
    Associate(u16),
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
    Associating,
    Done,
    Failed,
}

/// The parsed message; `None` while it is incomplete.
type Parsed<T> = Result<Option<T>, Failure>;

/// A client's command.
enum Request {
    Connect(Destination),
    Associate(u16),
}

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

    /// The next event. At most one [`SocksEvent::Connect`] or [`SocksEvent::Associate`];
    /// [`SocksEvent::Failed`] is the last.
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
            Ok(()) => self.succeed(UNKNOWN),
            Err(code) => self.fail(Failure::Dial(code)),
        }
    }

    /// After [`SocksEvent::Associate`]: the address of the relay, or the code of the refusal. Other
    /// calls change nothing.
    pub fn associated(&mut self, result: Result<SocketAddr, ReplyCode>) {
        if self.state != NegotiationState::Associating {
            return;
        }
        match result {
            Ok(relay) => self.succeed(relay),
            Err(code) => self.fail(Failure::Association(code)),
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
            _ => parse_request(&self.input).map(|request| match request {
                Some(Request::Connect(destination)) => self.connect(destination),
                Some(Request::Associate(port)) => {
                    self.input = Vec::new();
                    self.event = Some(SocksEvent::Associate(port));
                    self.state = NegotiationState::Associating;
                }
                None => {}
            }),
        };
        if let Err(failure) = parsed {
            self.fail(failure);
        }
    }

    fn connect(&mut self, destination: Destination) {
        self.input = Vec::new();
        self.event = Some(SocksEvent::Connect(destination));
        match self.policy {
            SocksReply::Immediate => self.succeed(UNKNOWN),
            SocksReply::Dialed => self.state = NegotiationState::Waiting,
        }
    }

    fn succeed(&mut self, bound: SocketAddr) {
        self.reply(ReplyCode::Succeeded, bound);
        self.state = NegotiationState::Done;
    }

    fn fail(&mut self, failure: Failure) {
        match (self.state, failure.reply_code()) {
            (NegotiationState::Greeting, _) => self.output.extend([VERSION, METHOD_UNACCEPTABLE]),
            (_, code) => self.reply(code, UNKNOWN),
        }
        self.input = Vec::new();
        self.state = NegotiationState::Failed;
        self.event = Some(SocksEvent::Failed(failure));
    }

    /// VER, REP, RSV, and the bound address (RFC 1928 6).
    fn reply(&mut self, code: ReplyCode, bound: SocketAddr) {
        self.output.extend([VERSION, code as u8, 0]);
        address::encode(bound, &mut self.output);
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
            Self::Dial(code) | Self::Association(code) => code,
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

/// VER, CMD, RSV, and the destination (RFC 1928 4). RSV is ignored. So is the address from which a
/// client will send datagrams, because it may be behind a translator.
fn parse_request(input: &[u8]) -> Parsed<Request> {
    let (command, rest) = match input {
        [version, ..] if *version != VERSION => return Err(Failure::Version(*version)),
        [_, command @ (COMMAND_CONNECT | COMMAND_ASSOCIATE), rest @ ..] => (*command, rest),
        [_, command, ..] => return Err(Failure::Command(*command)),
        _ => return Ok(None),
    };
    let Some((destination, _)) = address::parse(rest.get(1..).unwrap_or_default())? else {
        return Ok(None);
    };
    match (command, destination.port()) {
        (COMMAND_ASSOCIATE, port) => Ok(Some(Request::Associate(port))),
        (_, 0) => Err(Failure::Port),
        _ => Ok(Some(Request::Connect(destination))),
    }
}

/// The bound address of most replies: the cloud's address is useless on board.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const VERSION: u8 = 5;
const METHOD_NONE: u8 = 0x00;
const METHOD_UNACCEPTABLE: u8 = 0xff;
const COMMAND_CONNECT: u8 = 1;
const COMMAND_ASSOCIATE: u8 = 3;

#[cfg(test)]
mod tests;
