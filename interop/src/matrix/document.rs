//! The tables of `docs/matrix.md` agree with the code.

use std::collections::BTreeMap;

use super::{Class, Expected, Fault, TARGETS, Ways};

const DOCUMENT: &str = include_str!("../../../docs/matrix.md");
const BOTH: Ways = Ways { quic: true, tls: true };
const QUIC: Ways = Ways { quic: true, tls: false };
const TLS: Ways = Ways { quic: false, tls: true };

/// The rows of the table whose first heading is `heading`, cells without marks.
fn table(heading: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_matches('|');
        line.split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    DOCUMENT
        .lines()
        .skip_while(|line| !line.starts_with(&format!("| {heading} |")))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

fn class_name(fault: Fault, ways: Ways) -> String {
    match fault.expected(ways) {
        None => "-".into(),
        Some(Expected::Back(class)) => class.name().into(),
        Some(Expected::OutThenBack(class)) => format!("out, then {}", class.name()),
    }
}

#[test]
fn the_targets_are_the_codes() {
    let documented: Vec<(String, String)> =
        table("class").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let coded: Vec<(String, String)> =
        TARGETS.iter().map(|(class, ms)| (class.name().into(), format!("{ms} ms"))).collect();
    assert_eq!(documented, coded);
    assert!(TARGETS.iter().all(|(class, ms)| class.target().as_millis() == u128::from(*ms)));
    assert_eq!(Class::Steady.target().as_millis(), 300);
}

#[test]
fn each_fault_leads_to_what_the_document_says() {
    let documented: BTreeMap<String, Vec<String>> =
        table("fault").into_iter().map(|row| (row[0].clone(), row[2..].to_vec())).collect();
    let coded: BTreeMap<String, Vec<String>> = Fault::ALL
        .into_iter()
        .map(|fault| {
            let classes = [BOTH, QUIC, TLS].map(|ways| class_name(fault, ways));
            (fault.to_string(), classes.to_vec())
        })
        .collect();
    assert_eq!(documented, coded);
}
