//! A network of its own for a thread: nothing but the loopback, which nobody else is on.

use nix::sched::{CloneFlags, unshare};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

/// From here on this thread, and the threads and processes that it starts, are on a network of their own.
/// [`crate::root::ready`] must have said yes.
pub fn own() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network of its own");
    switch_loopback_on();
}

/// The loopback of a new network is off. The kernel is asked by a message, since the program that would
/// do it need not be installed.
fn switch_loopback_on() {
    const NEW_LINK: u16 = 16;
    const REQUEST_AND_ANSWER: u16 = 1 | 4;
    const LOOPBACK: u32 = 1;
    const UP: u32 = 1;
    // Without a protocol it is the one about routes and links.
    let kernel =
        socket(AddressFamily::NETLINK, SocketType::RAW, None).expect("the kernel can be talked to");
    let mut ask = Vec::new();
    ask.extend(32_u32.to_ne_bytes());
    ask.extend(NEW_LINK.to_ne_bytes());
    ask.extend(REQUEST_AND_ANSWER.to_ne_bytes());
    ask.extend([0; 8]);
    // Which link, then the flags that it shall have, then which of them are meant.
    ask.extend([0; 4]);
    ask.extend(LOOPBACK.to_ne_bytes());
    ask.extend(UP.to_ne_bytes());
    ask.extend(UP.to_ne_bytes());
    sendto(&kernel, &ask, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
        .expect("the kernel hears");
    let mut answer = [0; 64];
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::empty()).expect("the kernel answers");
    assert!(length >= 20 && answer[16..20] == [0; 4], "the loopback stays off: {answer:?}");
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_network_of_its_own_is_a_loopback_that_nobody_else_is_on() {
        if !crate::root::ready() {
            return;
        }
        let outside = TcpListener::bind("127.0.0.1:0").expect("a port of the host's");
        let address = outside.local_addr().expect("it has one");
        own();
        assert!(TcpStream::connect(address).is_err(), "the host's loopback is another");
        let inside = TcpListener::bind(address).expect("the same port is free here");
        assert!(TcpStream::connect(inside.local_addr().expect("it has one")).is_ok());
    }
}
