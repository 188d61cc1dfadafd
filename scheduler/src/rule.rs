//! An entry of the table of rules: how a rule is built from its name and parameters.

use crate::params::{ParamError, Params, Reader};
use crate::{Handler, Parameter, Schedulerlet};

/// A rule with its parameters applied.
pub(crate) enum Made {
    /// A link of the chain.
    Link(Box<dyn Schedulerlet>),
    /// A handler of the chain.
    Handler(Box<dyn Handler>),
}

/// Builds a rule from its parameters.
type Make = fn(&mut Reader<'_>) -> Result<Made, ParamError>;

/// An entry of the table of rules.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub name: &'static str,
    /// The rule selects a path where none is selected. Other rules filter, add copies, or handle
    /// data in flight.
    pub selects: bool,
    make: Make,
}

/// A rule that selects a first path.
pub(crate) const fn first(name: &'static str, make: Make) -> Known {
    Known { name, selects: true, make }
}

/// A rule that needs another one to select the first path.
pub(crate) const fn beside(name: &'static str, make: Make) -> Known {
    Known { name, selects: false, make }
}

impl Known {
    pub fn make(&self, params: &Params) -> Result<(Made, Vec<Parameter>), ParamError> {
        let mut reader = params.reader(self.name);
        let made = (self.make)(&mut reader)?;
        Ok((made, reader.finish()?))
    }
}
