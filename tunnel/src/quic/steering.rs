//! Steers datagrams to the event loop that their connection id names, in the kernel.
//!
//! Several sockets are bound to one address (`SO_REUSEPORT`). A classic BPF program reads the byte
//! of the destination connection id that names the worker and returns its number, which is the
//! number of the socket in the order of binding. For a datagram that is too short the program ends
//! with 0, the first socket. A worker hands over what arrives wrongly anyhow.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use socket2::Socket;

use super::cid::WORKER;

/// Has the kernel choose among the sockets of this one's address.
pub(super) fn attach(socket: &Socket, workers: u8) -> io::Result<()> {
    let mut program = program(workers);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `program` points to a live array of `len` instructions, the kernel copies them during
    // the call, and the length is that of the structure.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The datagram's payload begins at offset 0: its id is behind the first byte of a short header,
/// and behind first byte, version and length of a long one (RFC 8999 5).
fn program(workers: u8) -> [libc::sock_filter; 7] {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        step(LOAD_BYTE, 0, 0, 0),
        step(JUMP_IF_SET, 0, 2, 0x80),
        step(LOAD_BYTE, 0, 0, (6 + WORKER) as u32),
        step(JUMP, 0, 0, 1),
        step(LOAD_BYTE, 0, 0, (1 + WORKER) as u32),
        step(MODULO, 0, 0, u32::from(workers.max(1))),
        step(RETURN, 0, 0, 0),
    ]
}

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
