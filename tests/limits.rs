//! Which limit holds for which message.

mod support;
#[path = "support/through.rs"]
mod through;

#[allow(dead_code)]
#[path = "../examples/limit_from_env.rs"]
mod limit_from_env;

use std::{
    env::VarError,
    ffi::OsString,
    future::{Ready, ready},
    iter::zip,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, LOCATION},
};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use support::{
    Hint, Script, Step, VARIANTS, data,
    drive::Drive,
    net::{AnyBody, BoxError, Raw, Server, any_body},
};
use through::{AnyLayer, Exchange, Reader, around, assert_limit, limiters, read};
use tower::{
    Layer, Service, ServiceExt,
    retry::{self, RetryLayer},
    service_fn,
    util::MapRequestLayer,
};
use tower_body_limit::{
    Error, LimitControl, LimitedBody, MediaTypeLimits, Policy, RequestLimit, RequestSizeLimitLayer,
    ResponseBody, ResponseLimit, ResponseSizeLimitLayer, SetLimitError, SetRequestLimitLayer,
    StatusLimits, Subject, TooLarge, TruncateLayer,
};
use tower_http::follow_redirect::{FollowRedirectLayer, policy::FilterCredentials};

// Overrides

fn as_it_is(_: &mut Exchange) {}

/// Puts an override where whoever makes or receives the request would put it.
fn ask(exchange: &mut Exchange, subject: Subject, limit: Option<u64>) {
    let extensions = exchange.request.extensions_mut();
    if subject == Subject::Request {
        extensions.insert(RequestLimit::new(limit));
    } else {
        extensions.insert(ResponseLimit::new(limit));
    }
}

#[tokio::test]
async fn an_override_lowers_freely_and_raises_up_to_the_ceiling() {
    const UP_TO_100: Option<Option<u64>> = Some(Some(100));
    const ANY: Option<Option<u64>> = Some(None);
    // The limit, the ceiling, what is asked for, and what holds.
    for (limit, ceiling, asked, holds) in [
        (Some(10), None, Some(5), Some(5)),
        (Some(10), None, Some(0), Some(0)),
        (Some(10), None, Some(10), Some(10)),
        (Some(10), None, Some(11), Some(10)),
        (Some(10), None, None, Some(10)),
        (Some(10), UP_TO_100, Some(5), Some(5)),
        (Some(10), UP_TO_100, Some(50), Some(50)),
        (Some(10), UP_TO_100, Some(100), Some(100)),
        (Some(10), UP_TO_100, Some(101), Some(100)),
        (Some(10), UP_TO_100, Some(u64::MAX), Some(100)),
        (Some(10), UP_TO_100, None, Some(100)),
        (Some(10), ANY, Some(1000), Some(1000)),
        (Some(10), ANY, None, None),
        (None, None, Some(5), Some(5)),
        (None, None, None, None),
        (None, UP_TO_100, Some(1000), Some(1000)),
        (None, UP_TO_100, None, None),
        // A ceiling below the limit takes nothing away.
        (Some(10), Some(Some(5)), Some(20), Some(10)),
        (Some(10), Some(Some(5)), None, Some(10)),
    ] {
        for (subject, side, layer) in limiters(limit, ceiling, "") {
            let case = format!("{side}, {limit:?}, up to {ceiling:?}, asked for {asked:?}");
            let put = |exchange: &mut Exchange| ask(exchange, subject, asked);
            assert_limit(&layer, subject, holds, put, &case).await;
            assert_limit(&layer, subject, limit, as_it_is, &case).await;
        }
    }
}

#[tokio::test]
async fn an_override_of_a_response_goes_before_that_of_its_request() {
    const NOTHING: Option<Option<u64>> = None;
    // With a limit of 10 and a ceiling of 100.
    for (by_request, by_response, holds) in [
        (NOTHING, NOTHING, Some(10)),
        (Some(Some(5)), NOTHING, Some(5)),
        (NOTHING, Some(Some(5)), Some(5)),
        (Some(Some(5)), Some(Some(50)), Some(50)),
        (Some(Some(50)), Some(Some(5)), Some(5)),
        (Some(Some(50)), Some(Some(101)), Some(100)),
        (Some(Some(5)), Some(None), Some(100)),
        (Some(None), NOTHING, Some(100)),
    ] {
        for layer in [
            ResponseSizeLimitLayer::server(10),
            ResponseSizeLimitLayer::client(10),
        ] {
            let case = format!("{by_request:?}, {by_response:?}, {layer:?}");
            let put = |exchange: &mut Exchange| {
                let asked = by_request.map(ResponseLimit::new);
                asked.map(|asked| exchange.request.extensions_mut().insert(asked));
                let own = by_response.map(ResponseLimit::new);
                own.map(|own| exchange.response.extensions_mut().insert(own));
            };
            let layer = layer.override_ceiling(100);
            assert_limit(&layer, Subject::Response, holds, put, &case).await;
        }
    }
}

#[tokio::test]
async fn an_override_goes_no_further_than_the_first_layer_that_takes_it() {
    let limiters = |label| limiters(10, Some(Some(100)), label);
    for ((subject, side, outer), (.., inner)) in zip(limiters("outer"), limiters("inner")) {
        let twice = (outer, inner);
        for (asked, holds, by) in [(50, 10, "inner"), (5, 5, "outer")] {
            let put = |exchange: &mut Exchange| ask(exchange, subject, Some(asked));
            let label = assert_limit(&twice, subject, Some(holds), put, side).await;
            assert_eq!(label, Some(by), "{subject:?}, {side}");
        }
        let mut exchange = Exchange::of(subject, 10, Hint::Declared);
        ask(&mut exchange, subject, Some(50));
        let asked = exchange.through(&twice.0).await.asked.expect(side);
        assert!(asked.extensions.get::<RequestLimit>().is_none(), "{side}");
        assert!(asked.extensions.get::<ResponseLimit>().is_none(), "{side}");
    }
}

/// One that the inner service sets comes by the inner layer first.
#[tokio::test]
async fn an_override_of_a_response_is_taken_on_its_way_out() {
    let layer = |ty: fn(u64) -> ResponseSizeLimitLayer, limit| ty(limit).override_ceiling(100);
    for ty in [
        ResponseSizeLimitLayer::server,
        ResponseSizeLimitLayer::client,
    ] {
        let twice = (layer(ty, 20).label("outer"), layer(ty, 10).label("inner"));
        let put = |exchange: &mut Exchange| {
            let extensions = exchange.response.extensions_mut();
            extensions.insert(ResponseLimit::new(50));
        };
        let label = assert_limit(&twice, Subject::Response, Some(20), put, "twice").await;
        assert_eq!(label, Some("outer"));

        let mut exchange = Exchange::of(Subject::Response, 10, Hint::Declared);
        put(&mut exchange);
        let answered = exchange.through(&twice.1).await.answered.unwrap();
        assert!(answered.extensions.get::<ResponseLimit>().is_none());
    }
}

#[tokio::test]
async fn an_override_is_left_to_the_layer_it_is_meant_for() {
    let layers = (
        RequestSizeLimitLayer::server(10).override_ceiling(100),
        ResponseSizeLimitLayer::server(10).override_ceiling(100),
    );
    let both = |exchange: &mut Exchange| {
        ask(exchange, Subject::Request, Some(20));
        ask(exchange, Subject::Response, Some(30));
    };
    assert_limit(&layers, Subject::Request, Some(20), both, "both").await;
    assert_limit(&layers, Subject::Response, Some(30), both, "both").await;
}

/// A proxy that hands on all it received, extensions included.
#[tokio::test]
async fn an_override_does_not_cross_a_proxy() {
    let proxy = (
        ResponseSizeLimitLayer::server(100)
            .override_ceiling(1000)
            .label("server"),
        RequestSizeLimitLayer::server(100)
            .override_ceiling(1000)
            .label("server"),
        ResponseSizeLimitLayer::client(10)
            .override_ceiling(1000)
            .label("upstream call"),
        RequestSizeLimitLayer::client(10)
            .override_ceiling(1000)
            .label("upstream call"),
    );
    for subject in [Subject::Request, Subject::Response] {
        // The limit of the call is lower, and stays so.
        let inbound = |exchange: &mut Exchange| ask(exchange, subject, Some(500));
        let label = assert_limit(&proxy, subject, Some(10), inbound, "inbound").await;
        assert_eq!(label, Some("upstream call"));
    }
    let upstream = |exchange: &mut Exchange| {
        let extensions = exchange.response.extensions_mut();
        extensions.insert(ResponseLimit::new(500));
    };
    let label = assert_limit(&proxy, Subject::Response, Some(100), upstream, "upstream").await;
    assert_eq!(label, Some("server"));
}

// Clients that call more than once

/// A client over `respond`, called once.
async fn call<L, B, F>(layer: L, respond: F, request: Request<Full<Bytes>>) -> Option<TooLarge>
where
    F: Fn(&Request<Full<Bytes>>) -> Response<Script> + Clone,
    L: Layer<ClientOf<F>>,
    L::Service: Service<Request<Full<Bytes>>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let client = layer.layer(ClientOf(respond));
    read(client.oneshot(request).await.map_err(Into::into))
        .await
        .0
}

/// A client whose every call ends in what a function makes of the request.
#[derive(Clone)]
struct ClientOf<F>(F);

impl<F, B> Service<Request<B>> for ClientOf<F>
where
    F: Fn(&Request<B>) -> Response<Script>,
{
    type Response = Response<Script>;
    type Error = BoxError;
    type Future = Ready<Result<Response<Script>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ready(Ok((self.0)(&request)))
    }
}

fn asking(uri: &str, limit: u64) -> Request<Full<Bytes>> {
    let mut request = Request::get(uri).body(Full::default()).unwrap();
    request.extensions_mut().insert(ResponseLimit::new(limit));
    request
}

#[tokio::test]
async fn an_override_holds_for_each_response_on_the_way_of_a_redirect() {
    let usual = FollowRedirectLayer::new;
    let allowing = || {
        let filter = FilterCredentials::new().allow_extension::<ResponseLimit>();
        FollowRedirectLayer::with_policy(filter)
    };
    // What tower-http drops on the way to another origin does not come to the layer there.
    for (location, asked, kept, dropped) in [
        ("http://a.test/next", 50, 50, 50),
        ("http://b.test/", 50, 50, 10),
        ("http://a.test/next", 5, 5, 5),
        ("http://b.test/", 5, 5, 10),
    ] {
        for hint in VARIANTS {
            let respond = |len: usize| {
                let hint = hint.clone();
                move |request: &Request<_>| {
                    let first = request.uri() == "http://a.test/";
                    let body = Script::new([data(if first { 4 } else { len })], hint.clone());
                    let response = Response::builder().status(if first { 302 } else { 200 });
                    response.header(LOCATION, location).body(body).unwrap()
                }
            };
            let limit = || ResponseSizeLimitLayer::client(10).override_ceiling(100);
            for (len, passes) in around(Some(kept)) {
                let request = asking("http://a.test/", asked);
                let breach = call((allowing(), limit()), respond(len), request).await;
                assert_eq!(
                    breach.is_none(),
                    passes,
                    "{location}, {asked}, {hint:?}, {len}"
                );
            }
            for (len, passes) in around(Some(dropped)) {
                let request = asking("http://a.test/", asked);
                let breach = call((usual(), limit()), respond(len), request).await;
                assert_eq!(
                    breach.is_none(),
                    passes,
                    "{location}, {asked}, {hint:?}, {len}"
                );
            }
        }
    }
}

/// Tries again until the status is a success.
#[derive(Clone)]
struct UntilSuccess;

impl<B: Clone, T, E> retry::Policy<Request<B>, Response<T>, E> for UntilSuccess {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<B>,
        result: &mut Result<Response<T>, E>,
    ) -> Option<Self::Future> {
        let failed = result
            .as_ref()
            .is_ok_and(|response| !response.status().is_success());
        failed.then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}

#[tokio::test]
async fn an_override_holds_for_each_attempt_of_a_retry_outside_the_layer() {
    for hint in VARIANTS {
        for (asked, holds) in [(50, 50), (5, 5)] {
            for (len, passes) in around(Some(holds)) {
                let attempts = AtomicUsize::new(0);
                let respond = |_: &Request<_>| {
                    let failed = attempts.fetch_add(1, Ordering::SeqCst) < 2;
                    let body = Script::new([data(if failed { 4 } else { len })], hint.clone());
                    let status = if failed { 503 } else { 200 };
                    Response::builder().status(status).body(body).unwrap()
                };
                let limit = ResponseSizeLimitLayer::client(10).override_ceiling(100);
                let layers = (RetryLayer::new(UntilSuccess), limit);
                let breach = call(layers, respond, asking("/", asked)).await;
                assert_eq!(breach.is_none(), passes, "{hint:?}, {asked}, {len}");
                assert_eq!(attempts.load(Ordering::SeqCst), 3);
            }
        }
    }
}

#[tokio::test]
async fn an_override_stays_with_its_request_when_the_service_is_cloned() {
    for hint in VARIANTS {
        let respond = |_: &Request<_>| Response::new(Script::new([data(20)], hint.clone()));
        let layer = ResponseSizeLimitLayer::client(10).override_ceiling(100);
        let client = layer.layer(ClientOf(respond));
        for (client, asked, passes) in [
            (client.clone(), 20, true),
            (client.clone(), 10, false),
            (client, 100, true),
        ] {
            let response = client.clone().oneshot(asking("/", asked)).await;
            let (breach, _) = read(response).await;
            assert_eq!(breach.is_none(), passes, "{hint:?}, {asked}");
            // Nothing of it is left.
            let response = client.oneshot(Request::new(Full::<Bytes>::default())).await;
            assert_eq!(
                read(response).await.0.unwrap().limit(),
                10,
                "{hint:?}, {asked}"
            );
        }
    }
}

#[tokio::test]
async fn messages_through_one_layer_count_for_themselves() {
    for hint in VARIANTS {
        for (subject, side, layer) in limiters(10, None, "") {
            let exchanges = [6, 10, 11, 6].map(|len| Exchange::of(subject, len, hint.clone()));
            let (requests, answers): (Vec<_>, Vec<_>) = exchanges
                .map(|exchange| (exchange.request, exchange.response))
                .into_iter()
                .unzip();
            let service = layer.layer(Reader::new(answers));
            let mut passed = Vec::new();
            for request in requests {
                let result = service.clone().oneshot(request.map(any_body)).await;
                passed.push(read(result).await.0.is_none());
            }
            assert_eq!(
                passed,
                [true, true, false, true],
                "{subject:?}, {side}, {hint:?}"
            );
        }
    }
}

// By the head

/// Sets the same fields in both heads.
fn with_fields(fields: &[(HeaderName, &[u8])]) -> impl Fn(&mut Exchange) {
    move |exchange| {
        for (name, value) in fields {
            let value = HeaderValue::from_bytes(value).unwrap();
            exchange.request.headers_mut().append(name, value.clone());
            exchange.response.headers_mut().append(name, value);
        }
    }
}

#[tokio::test]
async fn a_media_type_matches_by_its_essence_and_in_any_case() {
    const DEFAULT: Option<u64> = Some(10);
    const JSON: Option<u64> = Some(20);
    const PNG: Option<u64> = Some(30);
    let limits = MediaTypeLimits::new(10)
        .json(20)
        .event_stream(None)
        .media_type("image/png", 7)
        .media_type("Image/PNG", 30)
        .media_type("application/geo+json", 40)
        .media_type("application/zip", None);
    let types: &[(&[&[u8]], Option<u64>)] = &[
        (&[b"application/json"], JSON),
        (&[b"Application/JSON; charset=utf-8"], JSON),
        (&[b"application/json;charset=utf-8"], JSON),
        (&[b"application/json ; charset=utf-8"], JSON),
        (&[b"\tapplication/json "], JSON),
        (&[b"application/problem+json"], JSON),
        (&[b"application/problem+JSON; charset=utf-8"], JSON),
        (&[b"text/json"], JSON),
        (&[b"application/jsonp"], DEFAULT),
        (&[b"application/x+jsonp"], DEFAULT),
        (&[b"application/xjson"], DEFAULT),
        (&[b"json"], DEFAULT),
        (&[b"text/plain; also=application/json"], DEFAULT),
        (&[b"application/json, application/json"], DEFAULT),
        (&[], DEFAULT),
        (&[b""], DEFAULT),
        (&[b" ; charset=utf-8"], DEFAULT),
        (&[b"application/json", b"text/html"], DEFAULT),
        (&[b"application/json", b"application/json"], DEFAULT),
        (&[b"application/json; name=\xff"], DEFAULT),
        (&[b"\xff+json"], DEFAULT),
        (&[b"image/png"], PNG),
        (&[b"IMAGE/png; q=1"], PNG),
        (&[b"image/png2"], DEFAULT),
        (&[b"application/geo+json"], Some(40)),
        (&[b"application/zip"], None),
        (&[b"text/event-stream"], None),
        (&[b"Text/Event-Stream; charset=utf-8"], None),
    ];
    for (values, holds) in types {
        let fields: Vec<_> = values.iter().map(|value| (CONTENT_TYPE, *value)).collect();
        let prepare = with_fields(&fields);
        for (subject, side, layer) in limiters(limits.clone(), None, "") {
            let case = format!("{side}, {fields:?}");
            assert_limit(&layer, subject, *holds, &prepare, &case).await;
        }
    }
}

#[tokio::test]
async fn a_class_of_status_has_its_limit_and_that_may_depend_on_the_media_type() {
    let limits = StatusLimits::new(10)
        .success(MediaTypeLimits::new(20).json(30).event_stream(None))
        .client_error(40)
        .server_error(None);
    let plain: &[u8] = b"text/plain";
    for (status, media_type, holds) in [
        (200, plain, Some(20)),
        (299, plain, Some(20)),
        (200, b"application/json", Some(30)),
        (200, b"text/event-stream", None),
        (300, plain, Some(10)),
        (302, b"application/json", Some(10)),
        (399, plain, Some(10)),
        (400, b"application/json", Some(40)),
        (499, plain, Some(40)),
        (500, plain, None),
        (599, plain, None),
        (600, plain, Some(10)),
        (999, plain, Some(10)),
    ] {
        for layer in [
            ResponseSizeLimitLayer::server,
            ResponseSizeLimitLayer::client,
        ] {
            let layer = layer(Policy::from(limits.clone()));
            let put = |exchange: &mut Exchange| {
                *exchange.response.status_mut() = StatusCode::from_u16(status).unwrap();
                with_fields(&[(CONTENT_TYPE, media_type)])(exchange);
            };
            let case = format!("{status}, {}", media_type.escape_ascii());
            assert_limit(&layer, Subject::Response, holds, put, &case).await;
        }
    }
}

#[tokio::test]
async fn classes_without_a_limit_of_their_own_share_one() {
    let layer = ResponseSizeLimitLayer::client(StatusLimits::new(10));
    for status in [200, 302, 404, 503] {
        let put = |exchange: &mut Exchange| {
            *exchange.response.status_mut() = StatusCode::from_u16(status).unwrap();
        };
        let case = status.to_string();
        assert_limit(&layer, Subject::Response, Some(10), put, &case).await;
    }
}

/// That `|parts|` needs no type is half of the test.
#[tokio::test]
async fn a_closure_decides_by_the_head() {
    let header = HeaderName::from_static("x-plan");
    let by_header = |headers: &HeaderMap| match headers.get("x-plan").map(HeaderValue::as_bytes) {
        Some(b"large") => Some(20),
        Some(b"any") => None,
        _ => Some(10),
    };
    let limiters = [
        (
            Subject::Request,
            AnyLayer::new(RequestSizeLimitLayer::server_with(move |parts| {
                by_header(&parts.headers)
            })),
        ),
        (
            Subject::Request,
            AnyLayer::new(RequestSizeLimitLayer::client_with(move |parts| {
                by_header(&parts.headers)
            })),
        ),
        (
            Subject::Response,
            AnyLayer::new(ResponseSizeLimitLayer::server_with(move |parts| {
                by_header(&parts.headers)
            })),
        ),
        (
            Subject::Response,
            AnyLayer::new(ResponseSizeLimitLayer::client_with(move |parts| {
                by_header(&parts.headers)
            })),
        ),
    ];
    let plans: [(&[u8], _); 3] = [(b"small", Some(10)), (b"large", Some(20)), (b"any", None)];
    for (subject, layer) in limiters {
        for (plan, holds) in plans {
            let fields = [(header.clone(), plan)];
            assert_limit(&layer, subject, holds, with_fields(&fields), "by plan").await;
        }
    }
}

#[derive(Clone, Copy)]
struct Plan(u64);

#[tokio::test]
async fn a_closure_decides_by_what_an_outer_layer_left_for_it() {
    let sort = MapRequestLayer::new(|mut request: Request<AnyBody>| {
        if request.headers().contains_key("x-customer") {
            request.extensions_mut().insert(Plan(20));
        }
        request
    });
    let limit = RequestSizeLimitLayer::server_with(|parts| {
        Some(parts.extensions.get().map_or(10, |Plan(limit)| *limit))
    });
    let layers = (sort, limit);
    assert_limit(&layers, Subject::Request, Some(10), as_it_is, "nobody").await;
    let customer = [(HeaderName::from_static("x-customer"), &b"yes"[..])];
    assert_limit(
        &layers,
        Subject::Request,
        Some(20),
        with_fields(&customer),
        "customer",
    )
    .await;
}

/// A response does not say where it comes from, its request does.
#[tokio::test]
async fn a_client_can_have_a_limit_for_each_path() {
    let by_path = MapRequestLayer::new(|mut request: Request<AnyBody>| {
        if request.uri().path().starts_with("/.well-known/") {
            request.extensions_mut().insert(ResponseLimit::new(5));
        }
        request
    });
    let client = (by_path, ResponseSizeLimitLayer::client(10));
    for (path, holds) in [("/.well-known/openid-configuration", 5), ("/data", 10)] {
        let to = |exchange: &mut Exchange| *exchange.request.uri_mut() = path.parse().unwrap();
        assert_limit(&client, Subject::Response, Some(holds), to, path).await;
    }
    let server = RequestSizeLimitLayer::server_with(|parts| match parts.uri.path() {
        "/login" => Some(5),
        _ => Some(10),
    });
    for (path, holds) in [("/login", 5), ("/", 10)] {
        let to = |exchange: &mut Exchange| *exchange.request.uri_mut() = path.parse().unwrap();
        assert_limit(&server, Subject::Request, Some(holds), to, path).await;
    }
}

#[tokio::test]
async fn an_error_page_is_cut_where_a_success_fails() {
    let client = (
        ResponseSizeLimitLayer::client(StatusLimits::new(1000).success(10)),
        TruncateLayer::new(10),
    );
    for hint in VARIANTS {
        for (status, fails) in [(200, true), (404, false), (503, false)] {
            let respond = |_: &Request<_>| {
                let body = Script::new([data(6), data(6)], hint.clone());
                Response::builder().status(status).body(body).unwrap()
            };
            let response = client
                .layer(ClientOf(respond))
                .oneshot(asking("/", 1000))
                .await;
            let read = response.unwrap().into_body().collect().await;
            let case = format!("{hint:?}, {status}");
            match read {
                Ok(cut) => assert!(!fails && cut.to_bytes().len() == 10, "{case}"),
                Err(error) => {
                    let limit = error.too_large().expect(&case).limit();
                    assert!(fails && limit == 10, "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_head_is_not_counted() {
    let long = vec![b'x'; 8 * 1024];
    let fields = [(HeaderName::from_static("x-long"), &long[..])];
    for (subject, side, layer) in limiters(10, None, "") {
        assert_limit(&layer, subject, Some(10), with_fields(&fields), side).await;
    }
}

#[tokio::test]
async fn no_limit_is_spelled_out_and_never_a_number() {
    for (subject, side, layer) in limiters(None, None, "") {
        assert_limit(&layer, subject, None, as_it_is, side).await;
    }
    for (limit, shown) in [
        (None, "unlimited"),
        (Some(0), "0 bytes"),
        (Some(u64::MAX), "18446744073709551615 bytes"),
    ] {
        let shown = |text: String| assert!(text.contains(shown), "{text}");
        shown(format!("{:?}", RequestSizeLimitLayer::server(limit)));
        shown(format!("{:?}", RequestSizeLimitLayer::client(limit)));
        shown(format!("{:?}", ResponseSizeLimitLayer::server(limit)));
        shown(format!("{:?}", SetRequestLimitLayer::new(limit)));
    }
}

// Nesting

#[tokio::test]
async fn of_nested_limits_the_lower_one_fires_and_is_named() {
    for (outer, inner, holds, name) in [
        (1024, 1024 * 1024, 1024, "outer"),
        (1024 * 1024, 1024, 1024, "inner"),
        (0, 10, 0, "outer"),
        (10, 0, 0, "inner"),
    ] {
        for ((subject, side, outer), (.., inner)) in zip(
            limiters(outer, None, "outer"),
            limiters(inner, None, "inner"),
        ) {
            let case = format!("{side}, {name}");
            let label = assert_limit(&(outer, inner), subject, Some(holds), as_it_is, &case).await;
            assert_eq!(label, Some(name), "{subject:?}, {case}");
        }
    }
}

#[tokio::test]
async fn a_limit_without_a_label_says_none() {
    let layer = ResponseSizeLimitLayer::client(10);
    let label = assert_limit(&layer, Subject::Response, Some(10), as_it_is, "").await;
    assert_eq!(label, None);
}

#[tokio::test]
async fn a_route_raises_the_limit_of_an_adjustable_layer() {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let outer = RequestSizeLimitLayer::server(KIB).label("outer");
    let adjustable = outer.clone().adjustable(MIB);
    // Both apply, and a route cannot get around it ...
    let both = (outer, RequestSizeLimitLayer::server(MIB).label("route"));
    let label = assert_limit(&both, Subject::Request, Some(KIB), as_it_is, "both").await;
    assert_eq!(label, Some("outer"));
    // ... unless it is allowed to, and then there is still a limit.
    let raised = (adjustable.clone(), SetRequestLimitLayer::new(MIB));
    let label = assert_limit(&raised, Subject::Request, Some(MIB), as_it_is, "raised").await;
    assert_eq!(label, Some("outer"));
    let lowered = (adjustable.clone(), SetRequestLimitLayer::new(10));
    assert_limit(&lowered, Subject::Request, Some(10), as_it_is, "lowered").await;
    assert_limit(
        &adjustable,
        Subject::Request,
        Some(KIB),
        as_it_is,
        "elsewhere",
    )
    .await;
}

#[tokio::test]
async fn a_route_has_its_limit_by_media_type_too() {
    let route = SetRequestLimitLayer::new(MediaTypeLimits::new(20).json(50));
    let layers = (RequestSizeLimitLayer::server(10).adjustable(100), route);
    let json = [(CONTENT_TYPE, &b"application/json"[..])];
    assert_limit(&layers, Subject::Request, Some(20), as_it_is, "default").await;
    assert_limit(
        &layers,
        Subject::Request,
        Some(50),
        with_fields(&json),
        "json",
    )
    .await;
}

#[tokio::test]
async fn an_override_moves_the_limit_that_a_route_may_then_change() {
    let adjustable = RequestSizeLimitLayer::server(10).adjustable(100);
    let lower = |exchange: &mut Exchange| ask(exchange, Subject::Request, Some(5));
    assert_limit(&adjustable, Subject::Request, Some(5), lower, "lowered").await;
    let raised = (adjustable, SetRequestLimitLayer::new(50));
    assert_limit(&raised, Subject::Request, Some(50), lower, "and raised").await;
}

// LimitControl

type Limited = Request<LimitedBody<AnyBody>>;
type Handled = Request<LimitedBody<Script>>;

/// Calls `handler` behind a layer, and gives the response back.
async fn handle<F>(
    layer: &RequestSizeLimitLayer,
    request: Request<Script>,
    handler: F,
) -> Response<ResponseBody<Empty<Bytes>>>
where
    F: FnMut(Handled) -> Result<(), Error>,
{
    let mut handler = handler;
    let service = service_fn(|request| ready(handler(request).map(|()| Response::default())));
    layer
        .layer(service)
        .oneshot(request)
        .await
        .expect("an answer")
}

fn post(len: usize, hint: Hint) -> Request<Script> {
    Request::post("/")
        .body(Script::new([data(len)], hint))
        .unwrap()
}

fn control_of<B>(request: &Request<B>) -> LimitControl {
    request.extensions().get().cloned().expect("a control")
}

/// Sets a limit in front of the handler and says what came of it.
fn setting(
    limit: Option<u64>,
    result: Result<(), SetLimitError>,
) -> MapRequestLayer<impl Fn(Limited) -> Limited + Clone> {
    MapRequestLayer::new(move |request: Limited| {
        let control = control_of(&request);
        let before = control.limit();
        assert_eq!(control.set(limit), result);
        let after = if result.is_ok() { limit } else { before };
        assert_eq!(control.limit(), after);
        assert_eq!(request.body().limit(), after);
        request
    })
}

#[tokio::test]
async fn a_control_raises_and_lowers_up_to_the_ceiling() {
    let above = |limit, ceiling| Err(SetLimitError::AboveCeiling { limit, ceiling });
    // The limit, what the layer is adjustable to, what is set, what comes of it, and what holds.
    for (limit, adjustable, set, result, holds) in [
        (Some(10), Some(100), Some(50), Ok(()), Some(50)),
        (Some(10), Some(100), Some(100), Ok(()), Some(100)),
        (Some(10), Some(100), Some(5), Ok(()), Some(5)),
        (Some(10), Some(100), Some(0), Ok(()), Some(0)),
        (
            Some(10),
            Some(100),
            Some(101),
            above(Some(101), 100),
            Some(10),
        ),
        (
            Some(10),
            Some(100),
            Some(u64::MAX),
            above(Some(u64::MAX), 100),
            Some(10),
        ),
        (Some(10), Some(100), None, above(None, 100), Some(10)),
        (Some(10), None, Some(1000), Ok(()), Some(1000)),
        (Some(10), None, None, Ok(()), None),
        (None, Some(100), Some(1000), Ok(()), Some(1000)),
        (None, None, Some(5), Ok(()), Some(5)),
        // A ceiling below the limit takes nothing away.
        (Some(10), Some(5), Some(10), Ok(()), Some(10)),
        (Some(10), Some(5), Some(11), above(Some(11), 10), Some(10)),
    ] {
        let layer = RequestSizeLimitLayer::server(limit).adjustable(adjustable);
        let case = format!("{limit:?}, up to {adjustable:?}, set to {set:?}");
        let layers = (layer, setting(set, result));
        assert_limit(&layers, Subject::Request, holds, as_it_is, &case).await;
    }
}

#[tokio::test]
async fn a_layer_that_is_not_adjustable_has_no_control() {
    let layer = RequestSizeLimitLayer::server(10);
    for hint in VARIANTS {
        let response = handle(&layer, post(10, hint), |request| {
            assert!(request.extensions().get::<LimitControl>().is_none());
            Ok(())
        });
        assert_eq!(response.await.status(), 200);
    }
}

#[tokio::test]
async fn a_control_is_frozen_at_the_first_read() {
    let layer = RequestSizeLimitLayer::server(10).adjustable(100);
    for hint in VARIANTS {
        let response = handle(&layer, post(20, hint), |request| {
            let (control, other) = (control_of(&request), control_of(&request));
            assert_eq!(control.ceiling(), Some(100));
            control.set(50).unwrap();
            other.set(20).unwrap();
            assert_eq!(control.limit(), Some(20));

            let mut drive = Drive::new(request.into_body());
            assert_eq!(drive.step(), "20");
            for limit in [Some(5), Some(20), Some(50), Some(101), None] {
                assert_eq!(control.set(limit), Err(SetLimitError::Read), "{limit:?}");
                assert_eq!(other.limit(), Some(20));
                assert_eq!(drive.body.limit(), Some(20));
            }
            assert_eq!(drive.step(), "end");
            drop(drive);
            assert_eq!(control.set(5), Err(SetLimitError::Read));
            Ok(())
        });
        assert_eq!(response.await.status(), 200);
    }
}

/// A poll that comes to nothing has asked for bytes all the same.
#[tokio::test]
async fn a_first_read_that_is_pending_freezes_too() {
    let layer = RequestSizeLimitLayer::server(10).adjustable(100);
    let script = Script::new([Step::Pending, data(11)], Hint::Undeclared);
    let response = handle(&layer, Request::new(script), |request| {
        let control = control_of(&request);
        let mut drive = Drive::new(request.into_body());
        assert_eq!(drive.step(), "pending");
        assert_eq!(control.set(50), Err(SetLimitError::Read));
        drive.run();
        assert_eq!(drive.outline(), "pending breach end");
        Ok(())
    });
    assert_eq!(response.await.status(), 200);
}

#[tokio::test]
async fn a_body_at_its_end_that_declares_more_than_the_limit_is_refused_all_the_same() {
    let limit = RequestSizeLimitLayer::server;
    for layer in [
        limit(10),
        limit(10).adjustable(100),
        limit(100).adjustable(100),
    ] {
        let mut request = Request::new(Script::new([], Hint::Declared));
        request.headers_mut().insert(CONTENT_LENGTH, 50.into());
        let response = handle(&layer, request, |request| {
            control_of(&request).set(10).unwrap();
            Err(Drive::to_end(request.into_body()).error.take().unwrap())
        });
        assert_eq!(response.await.status(), 413, "{layer:?}");
    }
}

#[tokio::test]
async fn what_declares_more_than_the_limit_is_judged_at_the_first_read() {
    let layer = RequestSizeLimitLayer::server(10)
        .adjustable(100)
        .drain_with(1 << 20, Duration::from_secs(5), tokio::time::sleep);
    for by_header in [false, true] {
        for expects in [false, true] {
            let case = format!("by header: {by_header}, expects: {expects}");
            let request = || {
                let hint = if by_header {
                    Hint::Undeclared
                } else {
                    Hint::Declared
                };
                let mut request = post(50, hint);
                if by_header {
                    request.headers_mut().insert(CONTENT_LENGTH, 50.into());
                }
                if expects {
                    let expect = HeaderValue::from_static("100-continue");
                    request.headers_mut().insert(EXPECT, expect);
                }
                let log = request.body().log();
                (request, log)
            };

            // Refused at the read, without one: nothing is asked of the client.
            let (refused, log) = request();
            let response = handle(&layer, refused, |request| {
                let mut drive = Drive::new(request.into_body());
                assert_eq!(drive.step(), "breach", "{case}");
                assert_eq!(drive.step(), "end", "{case}");
                Err(drive.error.take().unwrap())
            });
            let response = response.await;
            assert_eq!(log.polls(), 0, "{case}");
            assert_eq!(response.status(), 413, "{case}");
            let error = response.extensions().get::<TooLarge>().unwrap();
            assert_eq!(error.declared(), Some(50), "{case}");
            assert_eq!((error.limit(), error.read()), (10, 0), "{case}");
            assert_eq!(log.dropped(), expects, "{case}");
            // What is being sent anyway is drained.
            response.into_body().collect().await.unwrap();
            assert_eq!(log.polls() > 0, !expects, "{case}");

            // Raised by then.
            let (raised, _) = request();
            let response = handle(&layer, raised, |request| {
                control_of(&request).set(50).unwrap();
                let drive = Drive::to_end(request.into_body());
                assert_eq!(drive.outline(), "50 end", "{case}");
                Ok(())
            });
            assert_eq!(response.await.status(), 200, "{case}");

            // Never read.
            let (unread, log) = request();
            let response = handle(&layer, unread, |_| Ok(())).await;
            assert_eq!(response.status(), 200, "{case}");
            assert!(log.dropped() && log.polls() == 0, "{case}");
        }
    }
}

#[tokio::test]
async fn what_declares_more_than_the_ceiling_is_refused_at_once() {
    let layer = RequestSizeLimitLayer::server(10).adjustable(100);
    let request = post(101, Hint::Declared);
    let log = request.body().log();
    let response = handle(&layer, request, |_| unreachable!("it is not called")).await;
    assert_eq!(response.status(), 413);
    assert_eq!(
        response.extensions().get::<TooLarge>().unwrap().declared(),
        Some(101)
    );
    assert_eq!(log.polls(), 0);

    let response = handle(&layer, post(101, Hint::Undeclared), |request| {
        control_of(&request).set(100).unwrap();
        let mut drive = Drive::to_end(request.into_body());
        assert_eq!(drive.outline(), "breach end");
        Err(drive.error.take().unwrap())
    });
    assert_eq!(response.await.status(), 413);
}

#[tokio::test]
async fn a_body_under_a_control_says_what_holds_at_the_time() {
    let layer = RequestSizeLimitLayer::server(10).adjustable(100);
    for hint in VARIANTS {
        let declared = matches!(hint, Hint::Declared);
        let response = handle(&layer, post(50, hint.clone()), |request| {
            let control = control_of(&request);
            let body = request.body();
            for limit in [10, 49, 50, 100, 20, 50] {
                control.set(limit).unwrap();
                // An exact length that will not come would be believed.
                let exact = (declared && limit >= 50).then_some(50);
                assert_eq!(body.size_hint().exact(), exact, "{hint:?}, {limit}");
                assert_eq!(
                    body.size_hint().lower(),
                    exact.unwrap_or(0),
                    "{hint:?}, {limit}"
                );
                assert!(!body.is_end_stream(), "{hint:?}, {limit}");
                assert_eq!(body.remaining(), Some(limit), "{hint:?}, {limit}");
            }
            Ok(())
        });
        assert_eq!(response.await.status(), 200);

        let empty = Request::new(Script::new([], hint.clone()));
        let response = handle(&layer, empty, |request| {
            control_of(&request).set(0).unwrap();
            assert_eq!(request.body().is_end_stream(), declared);
            let exact = declared.then_some(0);
            assert_eq!(request.body().size_hint().exact(), exact);
            assert_eq!(Drive::to_end(request.into_body()).outline(), "end");
            Ok(())
        });
        assert_eq!(response.await.status(), 200);
    }
}

#[tokio::test]
async fn a_second_adjustable_layer_joins_the_first() {
    // Outer limit and ceiling, inner limit and ceiling, and what both together have.
    for (outer, inner, joined) in [
        ((10, 100), (20, 50), (20, 50)),
        ((10, 100), (5, 50), (5, 50)),
        ((10, 100), (20, 500), (20, 100)),
        ((10, 100), (200, 500), (100, 100)),
        ((50, 100), (10, 20), (10, 20)),
    ] {
        let adjustable = |(limit, ceiling): (u64, u64), label| {
            RequestSizeLimitLayer::server(limit)
                .adjustable(ceiling)
                .label(label)
        };
        let (limit, ceiling) = joined;
        let case = format!("{outer:?}, {inner:?}");
        let layers = (adjustable(outer, "outer"), adjustable(inner, "inner"));
        assert_limit(&layers, Subject::Request, Some(limit), as_it_is, &case).await;
        let set = |limit| SetRequestLimitLayer::new(limit);
        let raised = (
            adjustable(outer, "outer"),
            adjustable(inner, "inner"),
            set(ceiling),
        );
        assert_limit(&raised, Subject::Request, Some(ceiling), as_it_is, &case).await;
        let lowered = (
            adjustable(outer, "outer"),
            adjustable(inner, "inner"),
            set(3),
        );
        assert_limit(&lowered, Subject::Request, Some(3), as_it_is, &case).await;
        let above = (
            adjustable(outer, "outer"),
            adjustable(inner, "inner"),
            set(ceiling + 1),
        );
        for hint in VARIANTS {
            let exchange = Exchange::of(Subject::Request, 1, hint);
            let answered = exchange.through(&above).await.answered.unwrap();
            let limit = Some(ceiling + 1);
            let error = SetLimitError::AboveCeiling { limit, ceiling };
            assert_eq!(answered.extensions.get(), Some(&error), "{case}");
        }
        // The second layer has the last word on what came before it.
        let before = (
            adjustable(outer, "outer"),
            set(100),
            adjustable(inner, "inner"),
        );
        assert_limit(&before, Subject::Request, Some(limit), as_it_is, &case).await;
    }
}

/// What stands between the two has read the body and made a new one.
#[tokio::test]
async fn a_second_adjustable_layer_limits_also_after_the_first_was_read() {
    for hint in VARIANTS {
        for (len, passes) in around(Some(10)) {
            let hint = hint.clone();
            let buffering = MapRequestLayer::new(move |request: Limited| {
                let (head, body) = request.into_parts();
                assert_eq!(Drive::to_end(body).data().len(), len);
                Request::from_parts(head, Script::new([data(len)], hint.clone()))
            });
            let outer = RequestSizeLimitLayer::server(50).adjustable(100);
            let inner = RequestSizeLimitLayer::server(10).adjustable(20);
            let exchange = Exchange::of(Subject::Request, len, Hint::Undeclared);
            let breach = exchange.through(&(outer, buffering, inner)).await.breach;
            assert_eq!(breach.is_none(), passes, "{len}");
        }
    }
}

// SetRequestLimitLayer

#[tokio::test]
async fn a_route_whose_limit_cannot_be_set_is_a_500_that_says_why() {
    let above = |limit, ceiling| SetLimitError::AboveCeiling { limit, ceiling };
    let fixed = RequestSizeLimitLayer::server(10);
    let adjustable = RequestSizeLimitLayer::server(10).adjustable(100);
    for (layer, limit, reason) in [
        (&fixed, Some(5), SetLimitError::NotAdjustable),
        (&adjustable, Some(101), above(Some(101), 100)),
        (&adjustable, None, above(None, 100)),
    ] {
        for hint in VARIANTS {
            let layers = (layer.clone(), SetRequestLimitLayer::new(limit));
            let exchange = Exchange::of(Subject::Request, 1, hint);
            let log = exchange.request.body().log();
            let after = exchange.through(&layers).await;
            let answered = after.answered.unwrap();
            assert_eq!(answered.status, 500, "{reason}");
            assert_eq!(answered.extensions.get(), Some(&reason));
            assert!(after.asked.is_none() && after.breach.is_none(), "{reason}");
            assert_eq!(log.polls(), 0, "{reason}");
        }
    }
}

#[tokio::test]
async fn a_limit_that_cannot_be_set_says_why_in_words() {
    for (error, text) in [
        (
            SetLimitError::AboveCeiling {
                limit: Some(101),
                ceiling: 100,
            },
            "a limit of 101 bytes is above the ceiling of 100 bytes",
        ),
        (
            SetLimitError::AboveCeiling {
                limit: None,
                ceiling: 100,
            },
            "a limit of none is above the ceiling of 100 bytes",
        ),
        (SetLimitError::Read, "the body has been read from already"),
        (
            SetLimitError::NotAdjustable,
            "no adjustable limit stands outside",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[tokio::test]
async fn a_limit_set_after_the_first_read_is_a_500_too() {
    for hint in VARIANTS {
        let reading = MapRequestLayer::new(|request: Limited| {
            let (head, body) = request.into_parts();
            Drive::new(body).step();
            Request::from_parts(head, Script::new([], Hint::Declared))
        });
        let layers = (
            RequestSizeLimitLayer::server(10).adjustable(100),
            reading,
            SetRequestLimitLayer::new(50),
        );
        let after = Exchange::of(Subject::Request, 5, hint)
            .through(&layers)
            .await;
        let answered = after.answered.unwrap();
        assert_eq!(answered.status, 500);
        assert_eq!(answered.extensions.get(), Some(&SetLimitError::Read));
    }
}

// Over a connection

/// 10 bytes, and up to 100 on one route, behind hyper.
async fn adjustable_server() -> Server {
    let length = async |body: Bytes| body.len().to_string();
    let route = axum::routing::post(length);
    let app = axum::Router::new()
        .route(
            "/large",
            route.clone().layer(SetRequestLimitLayer::new(100)),
        )
        .route("/small", route)
        .layer(RequestSizeLimitLayer::server(10).adjustable(100));
    Server::start(app).await
}

#[tokio::test]
async fn a_client_that_waits_is_invited_only_for_what_its_route_allows() {
    let server = adjustable_server().await;
    for (path, len, invited) in [
        ("/large", 50, true),
        ("/large", 101, false),
        ("/small", 10, true),
        ("/small", 50, false),
        ("/small", 101, false),
    ] {
        let case = format!("{path}, {len}");
        let mut raw = Raw::connect(&server).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n"
        );
        raw.send(head).await;
        let seen = raw.receive(&Method::POST).await.expect(&case);
        if !invited {
            assert_eq!(seen.status, 413, "{case}");
            continue;
        }
        assert_eq!(seen.status, 100, "{case}");
        raw.send(vec![b'x'; len]).await;
        let seen = raw.receive(&Method::POST).await.expect(&case);
        assert_eq!(
            (seen.status, &*seen.body),
            (StatusCode::OK, len.to_string().as_bytes()),
            "{case}"
        );
    }
}

// From configuration

#[test]
fn a_limit_from_the_environment_is_never_no_limit() {
    use limit_from_env::{DEFAULT, limit};

    let set = |text: &str| Ok(text.to_owned());
    for (setting, expected) in [
        (set("0"), 0),
        (set("1"), 1),
        (set("4096"), 4096),
        (set("64KiB"), 64 * 1024),
        (set(" 1.5 MB "), 1_500_000),
        (set("10 MiB"), 10 * 1024 * 1024),
        (set("18446744073709551614"), u64::MAX - 1),
        (Err(VarError::NotPresent), DEFAULT),
    ] {
        assert_eq!(limit(setting.clone()), (expected, None), "{setting:?}");
    }
    for setting in [
        set(""),
        set("   "),
        set("-1"),
        set("-1 KiB"),
        set("abc"),
        set("unlimited"),
        set("none"),
        set("inf"),
        set("NaN"),
        set("1e9"),
        set("1,000"),
        set("10 potatoes"),
        set("10 MiB or so"),
        set("1.2.3"),
        // They would be rounded down to the highest number there is.
        set("18446744073709551615"),
        set("18446744073709551616"),
        set("99999999999999999999999999"),
        set("16 EiB"),
        set("1000000 EB"),
        Err(VarError::NotUnicode(OsString::from("10 MiB"))),
    ] {
        let (limit, warning) = limit(setting.clone());
        assert_eq!(limit, DEFAULT, "{setting:?}");
        let warning = warning.expect("a warning");
        assert!(warning.contains("TOOL_MAX_RESPONSE_BYTES"), "{warning}");
        assert!(warning.contains(&DEFAULT.to_string()), "{warning}");
    }
}
