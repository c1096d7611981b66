//! Isolates a thread in its own network namespace, which has only a loopback interface.

use nix::sched::{CloneFlags, unshare};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

/// Moves this thread, and the threads and processes that it starts later, into a new network
/// namespace. [`crate::root::can_create_roots`] must have returned true.
pub fn isolate() {
    unshare(CloneFlags::CLONE_NEWNET).expect("cannot create a network namespace");
    enable_loopback();
}

/// The loopback of a new network namespace is down. It is set up with a netlink message, because
/// the `ip` program may be missing.
fn enable_loopback() {
    const NEW_LINK: u16 = 16;
    const REQUEST_WITH_ACK: u16 = 1 | 4;
    const LOOPBACK: u32 = 1;
    const UP: u32 = 1;
    // The default protocol is NETLINK_ROUTE.
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None)
        .expect("cannot open a netlink socket");
    let mut ask = Vec::new();
    ask.extend(32_u32.to_ne_bytes());
    ask.extend(NEW_LINK.to_ne_bytes());
    ask.extend(REQUEST_WITH_ACK.to_ne_bytes());
    ask.extend([0; 8]);
    // The interface index, then the flags, then the mask of flags to change.
    ask.extend([0; 4]);
    ask.extend(LOOPBACK.to_ne_bytes());
    ask.extend(UP.to_ne_bytes());
    ask.extend(UP.to_ne_bytes());
    sendto(&kernel, &ask, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
        .expect("cannot send the message");
    let mut answer = [0; 64];
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::empty()).expect("the kernel responds");
    assert!(length >= 20 && answer[16..20] == [0; 4], "cannot set up the loopback: {answer:?}");
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn isolated_network_has_a_separate_loopback() {
        if !crate::root::can_create_roots() {
            return;
        }
        let outside = TcpListener::bind("127.0.0.1:0").expect("a free port on the host");
        let address = outside.local_addr().expect("the listener has an address");
        isolate();
        assert!(TcpStream::connect(address).is_err(), "the host's loopback is not reachable");
        let inside = TcpListener::bind(address).expect("the same port is free here");
        assert!(
            TcpStream::connect(inside.local_addr().expect("the listener has an address")).is_ok()
        );
    }
}
