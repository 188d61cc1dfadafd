//! What a daemon builds of its certificate files, on its way from the control thread to the data
//! plane. The files are read on the control thread's side, for a file system may be slow or hang;
//! what is built of them is the tunnels' matter, and nothing here looks into it.

use std::any::Any;
use std::fmt;

use super::{AdminError, ErrorCode};

/// A daemon's certificates and key, as its [`AdminOptions::load`](super::AdminOptions::load) built
/// them.
pub struct Loaded(Box<dyn Any + Send>);

impl Loaded {
    /// Wraps what was built.
    pub fn new<T: Send + 'static>(built: T) -> Self {
        Self(Box::new(built))
    }

    /// What a reload brought along.
    ///
    /// # Errors
    /// There is nothing, or it is no `T`: a mistake of the daemon's.
    pub fn take<T: 'static>(loaded: Option<Self>) -> Result<T, AdminError> {
        let built = loaded.and_then(|loaded| loaded.0.downcast().ok());
        let missing = "the reload came without certificates";
        built.map(|built| *built).ok_or_else(|| AdminError::new(ErrorCode::Internal, missing))
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
        assert_eq!(Loaded::take::<u8>(Some(Loaded::new(7_u8))).unwrap(), 7);
        assert!(Loaded::take::<u16>(Some(Loaded::new(7_u8))).is_err());
        assert!(Loaded::take::<u8>(None).is_err());
        assert_eq!(format!("{:?}", Loaded::new("secret")), "Loaded");
    }
}
