//! The subcommands: each takes its arguments and an output, and says whether all is well.

pub(crate) mod admin;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod linkdb;
pub(crate) mod lists;
pub(crate) mod pki;
mod shown;
pub(crate) mod speedtest;
pub(crate) mod top;
