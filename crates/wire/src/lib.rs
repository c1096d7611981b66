//! The bodies that cross the network, and nothing else: no rules, no defaults, no behaviour.
//!
//! [`v1`] is the public interface, [`agent`] what agents and server say to each other. A body is only
//! a shape here; the server's `http` gives it meaning, and joins it with `domain` by exhaustive
//! matches, so that a new state stops the build where someone must choose what the outside sees.

pub mod agent;
pub mod v1;
