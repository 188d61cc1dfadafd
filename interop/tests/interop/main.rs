//! The real binaries end to end, one scenario a function, one at a time.

mod plain;
