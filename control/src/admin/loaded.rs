//! What a daemon builds of its certificate files, on its way from the control thread to the data
//! plane. The files are read on the control thread's side, for a file system may be slow or hang;
//! what is built of them is the tunnels' matter, and nothing here looks into it.

use std::any::Any;
use std::fmt;

/// A daemon's certificates and key, as its [`AdminOptions::load`](super::AdminOptions::load) built
/// them.
pub struct Loaded(Box<dyn Any + Send>);

impl Loaded {
    /// Wraps what was built.
    pub fn new<T: Send + 'static>(built: T) -> Self {
        Self(Box::new(built))
    }

    /// What was built; `None` when it is no `T`.
    pub fn take<T: 'static>(self) -> Option<T> {
        self.0.downcast().ok().map(|built| *built)
    }
}

impl fmt::Debug for Loaded {
    /// Says nothing of its contents: a private key is among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loaded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_comes_out() {
        assert_eq!(Loaded::new(7_u8).take::<u8>(), Some(7));
        assert_eq!(Loaded::new(7_u8).take::<u16>(), None);
        assert_eq!(format!("{:?}", Loaded::new("secret")), "Loaded");
    }
}
