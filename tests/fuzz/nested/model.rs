//! What layers over bodies over layers do, one poll at a time.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use http_body::Body;
use tower_body_limit::{Outcome, SetLimitError, TooLarge};

use super::{Boxed, Breach, End};
use crate::support::Step;

/// What happens, in order.
pub(super) type Trace = Arc<Mutex<Vec<What>>>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Data(u64),
    Trailers,
    Pending,
    Failure,
    Breach(Breach),
    End,
    Control(Option<(Option<u64>, Option<u64>)>),
    Set(Result<(), SetLimitError>),
}

pub(super) fn poll(body: &mut Boxed) -> What {
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(body).poll_frame(&mut cx) {
        Poll::Pending => What::Pending,
        Poll::Ready(None) => What::End,
        Poll::Ready(Some(Ok(frame))) => frame
            .into_data()
            .map_or(What::Trailers, |data| What::Data(data.len() as u64)),
        Poll::Ready(Some(Err(error))) => {
            TooLarge::find(&*error).map_or(What::Failure, |error| What::Breach(Breach::of(error)))
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Script(usize),
    Layer(usize),
}

/// What a body says of its length, before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    Exact,
    /// There are trailers to come, and nothing more is said.
    Least,
    /// Nothing but that it is at its end.
    End,
    /// Not even that.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Played {
    pub(super) steps: VecDeque<Step>,
    pub(super) tells: Tells,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) bytes: u64,
    pub(super) is_exact: bool,
}

impl Length {
    pub(super) fn exact(bytes: u64) -> Self {
        Self {
            bytes,
            is_exact: true,
        }
    }
}

/// What a head states in place of what is known of the body, if it is not less.
pub(super) fn declared(hint: Option<Length>, stated: Option<u64>) -> Option<Length> {
    let stated = stated.map(Length::exact);
    match (hint, stated) {
        (Some(hint), Some(stated)) if hint.bytes > stated.bytes => Some(hint),
        // A lower bound of nothing says nothing.
        (hint, stated) => stated.or(hint.filter(|hint| hint.is_exact || hint.bytes > 0)),
    }
}

#[derive(Debug)]
pub(super) struct Control {
    pub(super) limit: Option<u64>,
    pub(super) ceiling: Option<u64>,
    pub(super) frozen: bool,
}

#[derive(Debug)]
pub(super) struct Limited {
    pub(super) below: Source,
    pub(super) limit: Option<u64>,
    pub(super) control: Option<usize>,
    pub(super) declared: Option<Length>,
    pub(super) is_bodiless: bool,
    pub(super) read: u64,
    pub(super) settled: bool,
    pub(super) over: bool,
    pub(super) breach: Option<Breach>,
    pub(super) end: Option<End>,
}

/// All bodies there are, and who has which.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) scripts: Vec<Played>,
    /// By the number of their layer, in the order of their making or not.
    pub(super) layers: [Option<Limited>; 3],
    pub(super) controls: Vec<Control>,
    /// What is in the extensions.
    pub(super) control: Option<usize>,
    pub(super) trace: Vec<What>,
}

impl Model {
    pub(super) fn layer(&self, layer: usize) -> &Limited {
        self.layers[layer].as_ref().unwrap()
    }

    fn layer_mut(&mut self, layer: usize) -> &mut Limited {
        self.layers[layer].as_mut().unwrap()
    }

    pub(super) fn script(&mut self, steps: impl IntoIterator<Item = Step>, tells: Tells) -> Source {
        let steps = steps.into_iter().collect();
        self.scripts.push(Played { steps, tells });
        Source::Script(self.scripts.len() - 1)
    }

    /// Puts a layer over a body.
    pub(super) fn limit(
        &mut self,
        layer: usize,
        below: Source,
        limit: Option<u64>,
        declared: Option<Length>,
    ) -> &mut Limited {
        self.layers[layer].insert(Limited {
            below,
            limit,
            control: None,
            declared,
            is_bodiless: false,
            read: 0,
            settled: false,
            over: false,
            breach: None,
            end: None,
        })
    }

    fn limit_of(&self, layer: usize) -> Option<u64> {
        let layer = self.layer(layer);
        layer
            .control
            .map_or(layer.limit, |control| self.controls[control].limit)
    }

    /// The length that is known of what comes.
    pub(super) fn hint(&self, source: Source) -> Option<Length> {
        match source {
            Source::Script(script) => {
                let Played { steps, tells } = &self.scripts[script];
                let bytes = steps.iter().map(super::len).sum();
                let is_exact = *tells == Tells::Exact || steps.is_empty();
                let is_known = match tells {
                    Tells::Exact | Tells::Least => true,
                    Tells::End => steps.is_empty(),
                    Tells::Nothing => false,
                };
                is_known.then_some(Length { bytes, is_exact })
            }
            Source::Layer(layer) if self.layer(layer).over => Some(Length::exact(0)),
            Source::Layer(layer) => {
                let hint = self.hint(self.layer(layer).below);
                hint.filter(|_| !self.fails(layer))
            }
        }
    }

    fn is_doomed(&self, layer: usize) -> bool {
        let it = self.layer(layer);
        let limit = it.limit.unwrap_or(u64::MAX);
        it.declared.is_some_and(|declared| declared.bytes > limit)
    }

    /// Whether more than the limit is known to come.
    fn fails(&self, layer: usize) -> bool {
        let it = self.layer(layer);
        let limit = self.limit_of(layer).unwrap_or(u64::MAX);
        let is_doomed = !it.settled && it.control.is_none() && self.is_doomed(layer);
        let more = self.hint(it.below).map_or(0, |hint| hint.bytes);
        !it.is_bodiless && (is_doomed || more > limit.saturating_sub(it.read))
    }

    pub(super) fn is_end(&self, source: Source) -> bool {
        match source {
            Source::Script(script) => {
                let Played { steps, tells } = &self.scripts[script];
                *tells != Tells::Nothing && steps.is_empty()
            }
            Source::Layer(layer) => {
                let it = self.layer(layer);
                it.over || (self.is_end(it.below) && !self.fails(layer))
            }
        }
    }

    pub(super) fn poll(&mut self, source: Source) -> What {
        let layer = match source {
            Source::Script(script) => {
                return match self.scripts[script].steps.pop_front() {
                    Some(Step::Data(data)) => What::Data(data.len() as u64),
                    Some(Step::Trailers) => What::Trailers,
                    Some(Step::Pending) => What::Pending,
                    Some(_) => What::Failure,
                    None => What::End,
                };
            }
            Source::Layer(layer) => layer,
        };
        if self.layer(layer).over {
            return What::End;
        }
        if !self.layer(layer).settled {
            self.layer_mut(layer).settled = true;
            if let Some(control) = self.layer_mut(layer).control.take() {
                self.controls[control].frozen = true;
                self.layer_mut(layer).limit = self.controls[control].limit;
            }
            if self.is_doomed(layer) {
                return self.breach(layer, 0);
            }
        }
        let what = self.poll(self.layer(layer).below);
        match what {
            What::Data(len) => {
                let read = self.layer(layer).read + len;
                if self.layer(layer).limit.is_some_and(|limit| read > limit) {
                    return self.breach(layer, read);
                }
                self.layer_mut(layer).read = read;
            }
            What::End => self.end(layer, Outcome::Complete),
            What::Failure | What::Breach(_) => self.end(layer, Outcome::Failed),
            _ => {}
        }
        what
    }

    pub(super) fn breach(&mut self, layer: usize, read: u64) -> What {
        let it = self.layer(layer);
        let below = it.below;
        let breach = Breach {
            layer,
            limit: it.limit.unwrap(),
            declared: it.declared.map(|declared| declared.bytes),
            read,
            read_is_total: read > 0 && self.is_end(below),
        };
        self.layer_mut(layer).breach = Some(breach.clone());
        self.drop(below);
        self.end(layer, Outcome::Failed);
        What::Breach(breach)
    }

    fn end(&mut self, layer: usize, outcome: Outcome) {
        let limit = self.limit_of(layer);
        let it = self.layer_mut(layer);
        it.over = true;
        it.end = Some(End {
            outcome,
            read: it.read,
            limit,
        });
    }

    pub(super) fn drop(&mut self, source: Source) {
        let Source::Layer(layer) = source else {
            return;
        };
        let it = self.layer(layer);
        if it.over {
            return;
        }
        let below = it.below;
        let is_complete = it.is_bodiless
            || it.declared == Some(Length::exact(it.read))
            || self.is_end(below)
            || self.hint(below) == Some(Length::exact(0));
        let outcome = if is_complete {
            Outcome::Complete
        } else {
            Outcome::Dropped
        };
        self.end(layer, outcome);
        self.drop(below);
    }
}
