use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use http_body::Body;

use super::body::{RecordKind, RecordLimitedBody};
use crate::{body::Bound, error::Subject, media, policy::Policy, watch::Callbacks};

/// What a layer for the records of messages with the head `P` is set to.
#[derive(Debug)]
pub(super) struct Config<P> {
    kind: RecordKind,
    policy: Policy<P>,
    // Whether the policy decides for messages that are something else by their headers, too.
    takes_all: bool,
    pub(super) skips: bool,
    status: StatusCode,
    pub(super) label: Option<&'static str>,
    pub(super) callbacks: Arc<Callbacks>,
}

// Derived, it would want P to be Clone.
impl<P> Clone for Config<P> {
    fn clone(&self) -> Self {
        Self {
            policy: self.policy.clone(),
            callbacks: Arc::clone(&self.callbacks),
            ..*self
        }
    }
}

impl<P> Config<P> {
    pub(super) fn fitting(kind: RecordKind, limit: u64, status: StatusCode) -> Arc<Self> {
        Self::new(kind, limit.into(), false, status)
    }

    pub(super) fn new(
        kind: RecordKind,
        policy: Policy<P>,
        takes_all: bool,
        status: StatusCode,
    ) -> Arc<Self> {
        Arc::new(Self {
            kind,
            policy,
            takes_all,
            skips: false,
            status,
            label: None,
            callbacks: Arc::default(),
        })
    }

    pub(super) fn limit_for(&self, head: &P, headers: &HeaderMap) -> Option<u64> {
        let fits = match self.kind {
            RecordKind::Sse => media::is_event_stream,
            RecordKind::Lines => media::is_json_lines,
        };
        let is_taken = self.takes_all || (fits(headers) && !media::is_encoded(headers));
        is_taken.then(|| self.policy.limit_for(head))?
    }

    pub(super) fn body<B: Body>(&self, inner: B, limit: Option<u64>) -> RecordLimitedBody<B> {
        let bound = Bound {
            limit,
            subject: Subject::Record,
            status: self.status,
            label: self.label,
        };
        let body = RecordLimitedBody::bounded(inner, self.kind, bound);
        let Some(_) = limit else {
            return body;
        };
        let body = body.reported_to(&self.callbacks);
        if self.skips {
            body.skip_oversized()
        } else {
            body
        }
    }
}
