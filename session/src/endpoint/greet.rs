//! Greetings: HELLO, JOIN, WELCOME, REJECT, and the beginning and end of sessions.
//!
//! A gateway greets each tunnel once: with HELLO until it knows its session, with JOIN from then
//! on. User data may follow a JOIN at once, and a HELLO when it is answered. A JOIN may be sent as
//! early data; a HELLO waits for the end of the handshake. All HELLOs of one instance belong to one
//! session: the first HELLO that the cloud receives founds it, and its connection's key makes the
//! proofs in JOINs.

use std::collections::VecDeque;
use std::time::Instant;

use polyrail_model::{Identity, InstanceId, NodeRole, PathId, PathWish, SessionId, SessionKey};

use super::{Endpoint, Greeted, Phase, SessionEntry, instances};
use crate::core::Session;
use crate::counters::Counters;
use crate::event::{Event, TunnelKey};
use crate::limits::{COUNTER_RANGES_MAX, HELLOS_REMEMBERED, SESSIONS_MAX};
use crate::path::Manner;
use crate::proof;
use crate::settings::{Settings, TunnelInfo};
use crate::wire::{Frame, Greeting, Offer, RejectCode, ResetReason, encode};

impl Endpoint {
    /// Begins a session of the gateway, with an instance of its own: with the cloud `peer`, or
    /// with the first one that answers.
    pub(super) fn begin_session(&mut self, now: Instant, peer: Option<Identity>) -> SessionKey {
        let key = self.new_key();
        let count = u32::try_from(key.0).unwrap_or(u32::MAX).to_be_bytes();
        let mut instance = self.instance;
        instance.0[12..].copy_from_slice(&count);
        self.by_peer.extend(peer.clone().map(|peer| (peer, key)));
        self.insert(now, key, peer, instance, None, None);
        key
    }

    /// The session that a tunnel of the gateway joins: that with its cloud, which may begin now.
    fn session_to_greet(&mut self, now: Instant, key: TunnelKey) -> Option<SessionKey> {
        if self.preferred.is_none() {
            return self.current;
        }
        let peer = self.tunnels.get(&key)?.info.peer.clone();
        let known = self.by_peer.get(&peer).copied();
        Some(known.unwrap_or_else(|| self.begin_session(now, Some(peer))))
    }

    fn new_key(&mut self) -> SessionKey {
        let key = SessionKey(self.next_session);
        self.next_session += self.session_step;
        key
    }

    fn insert(
        &mut self,
        now: Instant,
        key: SessionKey,
        peer: Option<Identity>,
        instance: InstanceId,
        id: Option<SessionId>,
        founder: Option<(u64, [u8; 32])>,
    ) {
        let mut session = Session::new(now, key, self.role, self.settings.clone());
        if let Some((reason, refuses_flows)) = &self.going_away {
            session.go_away(reason, *refuses_flows);
        }
        let (counters, hellos, up) = (Counters::new(COUNTER_RANGES_MAX), VecDeque::new(), false);
        let entry = SessionEntry { session, peer, id, instance, founder, hellos, counters, up };
        self.sessions.insert(key, entry);
    }

    /// Greets over a tunnel (gateway), and makes it a path at once if the session is known. If not,
    /// an early tunnel waits, because a HELLO is not safe against replay.
    pub(super) fn greet(&mut self, now: Instant, key: TunnelKey) {
        let Some(session) = self.session_to_greet(now, key) else { return };
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        let known = entry.id.zip(entry.founder);
        if known.is_none() && tunnel.info.exporter.is_none() {
            (tunnel.phase, tunnel.greeting, tunnel.since) = (Phase::Greeting, None, now);
            return self.watch(key);
        }
        let counter = self.next_counter;
        self.next_counter += 1;
        let TunnelInfo { carrier, wish, .. } = tunnel.info.clone();
        let told = PathWish { rate_limit: None, ..wish };
        let greeting = Greeting { counter, rank: wish.rank, metered: wish.metered, carrier };
        let frame = match known {
            Some((id, (_, exporter))) => {
                let proof = proof::join_proof(&exporter, id, counter);
                Frame::Join { session: id, proof, greeting }
            }
            None => {
                if entry.hellos.len() >= HELLOS_REMEMBERED {
                    entry.hellos.pop_front();
                }
                entry.hellos.extend(tunnel.info.exporter.map(|exporter| (counter, exporter)));
                let terms = entry.session.terms();
                Frame::Hello { instance: entry.instance, greeting, terms }
            }
        };
        encode(&frame, &mut tunnel.outbox);
        self.outboxes.insert(key);
        let hello = known.is_none();
        tunnel.greeting = Some(Greeted { counter, told, hello, at: now, answered: false });
        tunnel.phase = Phase::Bound(session);
        tunnel.since = now;
        if known.is_some() {
            self.make_path(now, key, session, PathId(counter), false);
        }
        self.watch(key);
    }

    /// The tunnel carries flows from now on (gateway). After a HELLO that is when it is welcomed:
    /// if another cloud process took the HELLO, earlier data would be delivered twice.
    fn make_path(
        &mut self,
        now: Instant,
        key: TunnelKey,
        session: SessionKey,
        path: PathId,
        proven: bool,
    ) {
        let Some(tunnel) = self.tunnels.get(&key) else { return };
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let manner = tunnel.manner(proven);
        if entry.session.add_path(now, path, key, manner) {
            if let Some(Greeted { told, .. }) = tunnel.greeting {
                // The greeting has no limit, and the wish may have changed since a HELLO was sent.
                entry.session.tell_wish(path, told, tunnel.info.wish);
            }
            entry.session.set_room(key, tunnel.room);
            self.after(session);
        } else {
            self.refuse(now, key, None, "too many paths");
        }
    }

    /// WELCOME or REJECT (gateway).
    pub(super) fn on_answer(&mut self, now: Instant, key: TunnelKey, frame: &Frame<'_>) {
        let Some(tunnel) = self.tunnels.get(&key) else { return };
        let (Phase::Bound(session), Some(greeted)) = (tunnel.phase, tunnel.greeting) else {
            return;
        };
        match frame {
            Frame::Welcome { counter, .. } => {
                if *counter != greeted.counter || greeted.answered {
                    return self.refuse(now, key, None, "WELCOME for another greeting");
                }
                self.on_welcome(now, key, session, greeted, frame);
            }
            Frame::Reject { code, reason } => {
                let text = format!("refused by the cloud: {code} ({reason})");
                if *code == RejectCode::Unknown && !greeted.hello {
                    self.events.push_back(Event::Alarm { session: Some(session), text });
                    self.restart(now, key, session);
                } else {
                    self.refuse(now, key, None, &text);
                    let reason = match code {
                        RejectCode::Superseded => "taken over by another process",
                        RejectCode::Unauthorized => {
                            "the cloud no longer accepts the gateway's certificate"
                        }
                        _ => return,
                    };
                    self.end_session(now, session, reason, None);
                }
            }
            _ => {}
        }
    }

    fn on_welcome(
        &mut self,
        now: Instant,
        key: TunnelKey,
        session: SessionKey,
        greeted: Greeted,
        frame: &Frame<'_>,
    ) {
        let &Frame::Welcome { session: id, founder, offer, terms, .. } = frame else { return };
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        if entry.id.is_some_and(|known| known != id) {
            // The cloud has restarted while a HELLO was in flight.
            let reason = "the cloud does not know the session";
            return self.end_session(now, session, reason, None);
        }
        tunnel.greeting = Some(Greeted { answered: true, ..greeted });
        entry.id = Some(id);
        let founding = entry.hellos.iter().find(|(counter, _)| *counter == founder);
        entry.founder = entry.founder.or(founding.copied());
        if entry.founder.is_some() {
            entry.hellos.clear();
        }
        entry.session.agree(terms);
        if offer.streams {
            entry.session.offer_streams();
        }
        let peer = tunnel.info.peer.clone();
        entry.peer = Some(peer.clone());
        if !std::mem::replace(&mut entry.up, true) {
            self.events.push_back(Event::SessionUp { session, peer, offer });
        }
        let path = PathId(greeted.counter);
        if greeted.hello {
            self.make_path(now, key, session, path, true);
        }
        self.watch(key);
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        entry.session.welcomed(now, key, now.saturating_duration_since(greeted.at));
        if self.session_of(key) == Some(session) {
            self.events.push_back(Event::PathUp { tunnel: key, session, path });
        }
        self.after(session);
    }

    /// The cloud does not know the session any more: resets its flows and greets again over the
    /// tunnel of the REJECT, or, if that is early, after its handshake.
    fn restart(&mut self, now: Instant, key: TunnelKey, session: SessionKey) {
        self.end_session(now, session, "the cloud does not know the session", Some(key));
        if let Some(tunnel) = self.tunnels.get_mut(&key)
            && tunnel.phase != Phase::Refused
        {
            self.greet(now, key);
        }
    }

    /// HELLO or JOIN (cloud).
    pub(super) fn on_greeting(&mut self, now: Instant, key: TunnelKey, frame: &Frame<'_>) {
        let Some(tunnel) = self.tunnels.get(&key) else { return };
        let (peer, exporter) = (tunnel.info.peer.clone(), tunnel.info.exporter);
        let outcome = match frame {
            Frame::Hello { instance, greeting, terms } => {
                let Some(exporter) = exporter else {
                    let reason = "a HELLO must wait for the end of the handshake";
                    return self.refuse(now, key, Some(RejectCode::Protocol), reason);
                };
                let session = self.session_for(now, &peer, *instance, greeting, exporter);
                if let Ok(session) = session
                    && let Some(entry) = self.sessions.get_mut(&session)
                {
                    entry.session.agree(*terms);
                }
                session.map(|session| (session, greeting))
            }
            Frame::Join { session, proof, greeting } => {
                self.check_join(&peer, *session, proof, greeting).map(|key| (key, greeting))
            }
            _ => return,
        };
        match outcome.and_then(|(session, greeting)| self.admit(now, key, session, greeting)) {
            Ok(()) => {}
            Err((RejectCode::Unknown, reason)) => {
                let rejected = self.tunnels.get(&key).is_some_and(|tunnel| tunnel.rejected);
                if rejected {
                    let reason = "a second JOIN of an unknown session";
                    return self.refuse(now, key, Some(RejectCode::Protocol), reason);
                }
                // The tunnel stays: the gateway greets again over it.
                if let Some(tunnel) = self.tunnels.get_mut(&key) {
                    tunnel.rejected = true;
                    let code = RejectCode::Unknown;
                    encode(&Frame::Reject { code, reason: reason.to_owned() }, &mut tunnel.outbox);
                    self.outboxes.insert(key);
                    tunnel.since = now;
                    self.watch(key);
                }
            }
            Err((code, reason)) => self.refuse(now, key, Some(code), reason),
        }
    }

    /// The session of this instance; a new session replaces that of another instance.
    fn session_for(
        &mut self,
        now: Instant,
        peer: &Identity,
        instance: InstanceId,
        greeting: &Greeting,
        exporter: [u8; 32],
    ) -> Result<SessionKey, Refusal> {
        if self.instances.greets(now, peer, instance) {
            let text = format!("two processes use the certificate of {peer} at the same time");
            let session = self.by_peer.get(peer).copied();
            self.events.push_back(Event::Alarm { session, text });
        }
        if let Some(&key) = self.by_peer.get(peer) {
            let same = self.sessions.get(&key).is_some_and(|entry| entry.instance == instance);
            if same {
                return Ok(key);
            }
            let current = self.sessions.get(&key).map(|entry| entry.instance);
            if current.is_some_and(|current| instances::is_earlier(instance, current)) {
                return Err((RejectCode::Superseded, "the process has begun a later session"));
            }
        }
        let current = self.by_peer.get(peer).copied();
        if current.is_none() && self.sessions.len() >= SESSIONS_MAX {
            return Err((RejectCode::Overload, "too many sessions"));
        }
        if !self.instances.may_begin(now, peer) {
            return Err((RejectCode::Overload, "too many new sessions of this certificate"));
        }
        if let Some(key) = current {
            self.end_session(now, key, "a new process of the gateway has taken over", None);
        }
        let key = self.new_key();
        let id = proof::session_id(&self.seed, key.0);
        let founder = Some((greeting.counter, exporter));
        self.insert(now, key, Some(peer.clone()), instance, Some(id), founder);
        self.by_id.insert(id, key);
        self.by_peer.insert(peer.clone(), key);
        Ok(key)
    }

    fn check_join(
        &self,
        peer: &Identity,
        id: SessionId,
        proof: &[u8; 32],
        greeting: &Greeting,
    ) -> Result<SessionKey, Refusal> {
        let key = self.by_id.get(&id).ok_or((RejectCode::Unknown, "no such session here"))?;
        let entry = self.sessions.get(key).ok_or((RejectCode::Unknown, "no such session here"))?;
        if entry.peer.as_ref() != Some(peer) {
            return Err((RejectCode::NotYours, "the session is bound to another certificate"));
        }
        let right = entry
            .founder
            .is_some_and(|(_, exporter)| proof::verify(&exporter, id, greeting.counter, proof));
        if right { Ok(*key) } else { Err((RejectCode::NotYours, "the proof is wrong")) }
    }

    /// Makes the tunnel a path of the session and welcomes it.
    fn admit(
        &mut self,
        now: Instant,
        key: TunnelKey,
        session: SessionKey,
        greeting: &Greeting,
    ) -> Result<(), Refusal> {
        let Settings { families, datagrams, reports, speedtests, .. } = self.settings;
        let streams = datagrams;
        let offer = Offer { families, datagrams, reports, speedtests, streams };
        let Some(entry) = self.sessions.get_mut(&session) else {
            return Err((RejectCode::Unknown, "no such session here"));
        };
        let counter = greeting.counter;
        if entry.counters.is_used(counter) {
            return Err((RejectCode::Replayed, "the path counter was used before"));
        }
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return Ok(()) };
        let path = PathId(counter);
        let &Greeting { ref carrier, rank, metered, .. } = greeting;
        let wish = PathWish { rank, metered, rate_limit: None };
        let mode = tunnel.info.mode;
        let manner = Manner { carrier, wish, mode, proven: true };
        if !entry.session.add_path(now, path, key, manner) {
            return Err((RejectCode::Overload, "too many paths"));
        }
        entry.counters.accept(counter);
        if let (Some(id), Some((founder, _))) = (entry.id, entry.founder) {
            let terms = entry.session.terms();
            let welcome = Frame::Welcome { session: id, counter, founder, offer, terms };
            encode(&welcome, &mut tunnel.outbox);
            self.outboxes.insert(key);
        }
        tunnel.phase = Phase::Bound(session);
        tunnel.info.carrier.clone_from(&greeting.carrier);
        entry.session.set_room(key, tunnel.room);
        entry.session.brief_new_path();
        if !std::mem::replace(&mut entry.up, true) {
            let peer = tunnel.info.peer.clone();
            self.events.push_back(Event::SessionUp { session, peer, offer });
        }
        self.events.push_back(Event::PathUp { tunnel: key, session, path });
        self.watch(key);
        self.after(session);
        Ok(())
    }

    /// Ends a session that another one replaces: its flows are reset, its tunnels but `keep`
    /// closed. A gateway begins the next one, if it was the current one.
    pub(super) fn end_session(
        &mut self,
        now: Instant,
        key: SessionKey,
        reason: &str,
        keep: Option<TunnelKey>,
    ) {
        self.end_session_with(now, key, (RejectCode::Superseded, reason), keep);
    }

    /// Ends a session; the tunnels of a gateway are rejected with the code.
    pub(super) fn end_session_with(
        &mut self,
        now: Instant,
        key: SessionKey,
        (code, reason): (RejectCode, &str),
        keep: Option<TunnelKey>,
    ) {
        let Some(mut entry) = self.sessions.remove(&key) else { return };
        let flows = entry.session.abandon(ResetReason::SessionLost);
        self.events.append(&mut entry.session.events);
        let text = reason.to_owned();
        self.events.push_back(Event::SessionEnded { session: key, reason: text, flows });
        self.deadlines.set(key, None);
        self.dirty.remove(&key);
        if let Some(id) = entry.id {
            self.by_id.remove(&id);
        }
        if let Some(peer) = &entry.peer
            && self.by_peer.get(peer) == Some(&key)
        {
            self.by_peer.remove(peer);
        }
        let code = (self.role == NodeRole::Cloud).then_some(code);
        let bound = self.tunnels.iter().filter(|(_, tunnel)| tunnel.phase == Phase::Bound(key));
        let bound: Vec<TunnelKey> = bound.map(|(&tunnel, _)| tunnel).collect();
        for tunnel in bound {
            if Some(tunnel) != keep {
                self.refuse(now, tunnel, code, reason);
            }
        }
        if self.current == Some(key) {
            self.current = Some(self.begin_session(now, self.preferred.clone()));
        }
    }
}

type Refusal = (RejectCode, &'static str);
