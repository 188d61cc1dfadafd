//! The rail bench: contenders that play the same generated train trips in real time.

pub mod diagnosis;
pub mod document;
pub mod figures;
pub mod paired;
pub mod statistics;
pub mod timeline;
