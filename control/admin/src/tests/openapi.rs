//! `docs/openapi.json` has exactly the routes, methods, parameters and fields of this interface.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::routes;
use super::super::{ErrorCode, EventRecord, Reloaded, Scheduler};
use super::reference::{events, full_path, full_status};
use super::schema::{differences, document, schema};
use super::scripted::exchange;
use super::*;
use crate::reload::ChangeLine;

/// Asserts that a value has exactly the fields of its schema.
#[track_caller]
fn assert_documented(name: &str, value: &impl serde::Serialize) {
    let (document, value) = (document(), serde_json::to_value(value).unwrap());
    let found = differences(&document, schema(&document, name), &value);
    assert!(found.is_empty(), "{name}: {found:#?}");
}

#[test]
fn document_has_exactly_the_routes_and_their_methods() {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let documented: BTreeSet<&str> = paths.keys().map(String::as_str).collect();
    let routes = routes::routes::<GatewayTables>();
    let served: BTreeSet<&str> = routes.iter().map(|(address, _)| *address).collect();
    assert_eq!(documented, served);
    let (_node, control) = answered_control();
    for (address, operations) in paths {
        for method in ["get", "put", "post", "delete", "patch", "options", "trace"] {
            let target = address.replace("{name}", "a").replace("events", "events?follow=false");
            let head = format!("{} {target} HTTP/1.1\r\nhost: x\r\n", method.to_uppercase());
            let (answer, _) = on_runtime(exchange(&control, &format!("{head}\r\n")));
            let is_served = !answer.starts_with("HTTP/1.1 405 ");
            assert!(!answer.contains("unknown address"), "{method} {address}: {answer}");
            assert_eq!(operations.get(method).is_some(), is_served, "{method} {address}: {answer}");
        }
    }
}

#[test]
fn document_has_exactly_the_parameters() {
    let document = document();
    let (_node, control) = answered_control();
    let mut counted = 0;
    for (address, operations) in document["paths"].as_object().unwrap() {
        let Some(parameters) = operations["get"]["parameters"].as_array() else { continue };
        let documented = parameters.iter().map(|one| one["name"].as_str().unwrap().to_owned());
        let documented: BTreeSet<String> = documented.collect();
        let request = format!("GET {address}?nonsense=1 HTTP/1.1\r\nhost: x\r\n\r\n");
        let (answer, _) = on_runtime(exchange(&control, &request));
        // The refusal of an unknown parameter names all others.
        let (_, expected) = answer.split_once("expected ").expect("it is refused");
        let known: BTreeSet<String> =
            expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert_eq!(documented, known, "{address}: {answer}");
        counted += known.len();
    }
    assert!(counted > 12, "{counted} parameters");
}

#[test]
fn answers_have_exactly_the_documented_fields() {
    assert_documented("Status", &full_status());
    assert_documented("Paths", &json!({ "paths": [full_path(), path_a()] }));
    assert_documented("Path", &full_path());
    assert_documented("Flows", &FlowPage { flows: vec![flow()], next: Some(flow().id) });
    let next = "1-1-00000000000000ab".parse().ok();
    let users = UserPage { users: vec![user_ab()], next, places: Vec::new() };
    assert_documented("Users", &users);
    assert_documented("Users", &UserPage::default());
    let change = ChangeLine { key: "k".to_owned(), from: None, to: Some("v".to_owned()) };
    assert_documented("Reloaded", &Reloaded { changes: vec![change], warnings: vec![] });
    assert_documented("Scheduler", &Scheduler { chain: "min_rtt".parse().unwrap() });
    assert_documented("SpeedtestState", &speedtest());
    assert_documented("SpeedtestState", &json!(SpeedtestState { measuring: None, ..speedtest() }));
    let order = SpeedtestOrder { seconds: 5, carriers: vec!["a".to_owned()] };
    assert_documented("SpeedtestOrder", &order);
    assert_documented("Source", &source());
    assert_documented("Error", &json!({ "error": AdminError::unknown_path("b") }));
    let mut full = AdminError::new(ErrorCode::InvalidConfig, "m").about_key("k");
    full.0.file = Some(PathBuf::from("f"));
    (full.0.line, full.0.column, full.0.keys) = (Some(1), Some(2), vec!["k".to_owned()]);
    full.0.problems = vec![polyrail_config::Problem {
        file: PathBuf::from("f"),
        line: 1,
        column: 2,
        key: "k".to_owned(),
        reason: "r".to_owned(),
    }];
    let full = serde_json::to_value(full).unwrap();
    assert_documented("ErrorBody", &full);
    let documented = &document()["components"]["schemas"]["ErrorBody"]["properties"];
    let documented = documented.as_object().unwrap().keys();
    assert!(documented.eq(full.as_object().unwrap().keys()), "{full}");
}

#[test]
fn events_are_documented_and_no_others() {
    let document = document();
    let mut kinds = BTreeSet::new();
    for event in events() {
        let record = EventRecord { seq: 7, at: Timestamp::now(), event };
        let value = serde_json::to_value(&record).unwrap();
        kinds.insert(value["event"].as_str().unwrap().to_owned());
        assert_documented("Event", &value);
    }
    assert_documented("Event", &json!({ "event": "cut_off", "missed": 3, "message": "m" }));
    kinds.insert("cut_off".to_owned());
    let choices = schema(&document, "Event")["oneOf"].as_array().unwrap();
    assert_eq!(choices.len(), kinds.len());
}

#[test]
fn error_codes_are_documented() {
    let document = document();
    let codes = &schema(&document, "ErrorBody")["properties"]["code"]["enum"];
    let documented: BTreeSet<&str> =
        codes.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let known = super::reference::CODES.map(|code| code.to_string());
    assert_eq!(documented, known.iter().map(String::as_str).collect());
}

#[test]
fn differing_answers_are_found() {
    let document = document();
    let mut value = serde_json::to_value(flow()).unwrap();
    let schema = schema(&document, "Flow");
    assert!(differences(&document, schema, &value).is_empty());
    value["speed"] = json!(1);
    value["age_s"] = json!("old");
    value["state"] = json!("shut");
    value.as_object_mut().unwrap().remove("kind");
    let found = differences(&document, schema, &value);
    assert_eq!(found.len(), 4, "{found:#?}");
    // Two schemas of one answer must not both fit.
    let both = json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] });
    assert_eq!(differences(&document, &both, &json!(1)).len(), 1);
}

fn source() -> super::super::SourceState {
    super::super::SourceState {
        source: "gpsd".to_owned(),
        target: "127.0.0.1:2947".to_owned(),
        state: "connected".to_owned(),
        since: Timestamp::now(),
        heard_at: None,
        lines: 1,
        observations: 1,
        errors: 0,
        message: None,
    }
}
