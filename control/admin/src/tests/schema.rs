//! The schemas of `docs/openapi.json`, held against example answers. Tests of other crates include
//! this file.

#![allow(dead_code)] // each crate uses its part

use std::collections::BTreeSet;

use serde_json::Value;

/// The document.
pub fn document() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let text = std::fs::read_to_string(file).expect("the document is there");
    serde_json::from_str(&text).expect("the document is JSON")
}

/// Differences between a value and a schema: a field of one that the other lacks, and other types.
/// Fields may be missing only where the schema does not require them.
pub fn differences(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(document, schema, value, "", &mut found);
    found
}

/// The schema of this name.
pub fn schema<'a>(document: &'a Value, name: &str) -> &'a Value {
    let schema = &document["components"]["schemas"][name];
    assert!(schema.is_object(), "there is no schema {name}");
    schema
}

fn compare(document: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').expect("a reference in the document");
        let schema = document.pointer(pointer).unwrap_or_else(|| panic!("no {reference}"));
        return compare(document, schema, value, at, found);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| differences(document, choice, value).is_empty();
        if choices.iter().filter(fits).count() != 1 {
            // The last choice is null.
            compare(document, &choices[0], value, at, found);
            found.push(format!("{at}: {value} fits not exactly one schema"));
        }
        return;
    }
    let constant = schema.get("const").is_none_or(|constant| constant == value);
    let listed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    if !constant || !listed || !has_type(&schema["type"], value) {
        found.push(format!("{at}: {value} is not as in the schema"));
    }
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object())
    {
        let required = schema["required"].as_array().into_iter().flatten();
        let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
        for name in required.iter().filter(|name| !fields.contains_key(**name)) {
            found.push(format!("{at}/{name}: missing in the answer"));
        }
        for name in required.iter().filter(|name| !properties.contains_key(**name)) {
            found.push(format!("{at}/{name}: required without a schema"));
        }
        for (name, field) in fields {
            let at = format!("{at}/{name}");
            match properties.get(name) {
                Some(schema) => compare(document, schema, field, &at, found),
                None => found.push(format!("{at}: missing in the document")),
            }
        }
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        for item in list {
            compare(document, items, item, &format!("{at}/*"), found);
        }
    }
}

fn has_type(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    match types {
        Value::Null => true,
        Value::Array(names) => names.iter().any(is),
        name => is(name),
    }
}
