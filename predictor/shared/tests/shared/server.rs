//! The server: versions of the schema, privileges, TLS.

use polyrail_shared::{VERSION, migrate};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

#[test]
fn cloud_waits_for_a_schema_that_it_knows() {
    let Some(fleet) = Fleet::start() else { return };
    let mut a = fleet.cloud("a").unwrap();
    let set = |version: i32| {
        let set = format!("UPDATE polyrail.meta SET version = {version}; NOTIFY polyrail");
        fleet.postgres.sql(&set).unwrap();
    };
    let mut sent = 0;
    for (version, remedy) in
        [(VERSION + 1, "update the program"), (VERSION - 1, "run `polyrail linkdb shared migrate`")]
    {
        set(version);
        let names = |error: &Option<String>| error.as_ref().is_some_and(|e| e.contains(remedy));
        a.wait(SOON, |_, shared| names(&shared.error)).unwrap();
        a.send(&log("train-1"), sent, handovers(1, sent, 5, NOW_MS));
        a.wait(SOON, |entries, shared| entries == sent + 5 && shared.waiting == 5).unwrap();
        sent += 5;
        if version > VERSION {
            let refused = migrate(&fleet.postgres.server("owner"), None).unwrap_err();
            assert!(refused.to_string().contains(remedy), "{refused}");
        }
        set(VERSION);
        settle(&a, sent);
    }
    assert_eq!(migrate(&fleet.postgres.server("owner"), Some(30)).unwrap(), VERSION);
    let days = fleet.postgres.sql("SELECT retention_days FROM polyrail.meta").unwrap();
    assert_eq!(days, "30");
}

#[test]
fn database_without_schema_names_the_remedy() {
    let Some(mut fleet) = Fleet::without_schema() else { return };
    let a = fleet.cloud_with("a", fleet.postgres.server("owner")).unwrap();
    let names = |error: &str| error.contains("linkdb shared migrate");
    a.wait(SOON, |_, shared| shared.error.as_deref().is_some_and(names)).unwrap();
    fleet.postgres.stop();
    let away = |error: &str| error.contains("connect");
    a.wait(SOON, |_, shared| shared.error.as_deref().is_some_and(away)).unwrap();
}

#[test]
fn cloud_may_only_read_append_and_rotate() {
    let Some(fleet) = Fleet::start() else { return };
    let mut a = fleet.cloud("a").unwrap();
    a.send(&log("train-1"), 0, handovers(1, 0, 1, NOW_MS));
    settle(&a, 1);
    for refused in [
        "DELETE FROM polyrail.entry",
        "INSERT INTO polyrail.entry SELECT 1, 1, 7, data FROM polyrail.entry",
        "UPDATE polyrail.log SET next = 7",
        "UPDATE polyrail.meta SET retention_days = 1",
        "UPDATE polyrail.part SET begun_at = now()",
        "SELECT polyrail.take_quota('train-1', -100)",
        "DROP TABLE polyrail.entry_1",
        "CREATE TABLE polyrail.mine (x int)",
        "DROP SCHEMA polyrail CASCADE",
    ] {
        let error = fleet.postgres.sql_as("c", refused).unwrap_err().to_string();
        let is_refused = error.contains("permission denied") || error.contains("must be owner");
        assert!(is_refused, "{refused}: {error}");
    }
    assert_eq!(fleet.rows(), 1);
}

/// A cloud that is faulty or taken over must not end the logs of others.
#[test]
fn append_refuses_invalid_spans_and_far_marks() {
    let Some(fleet) = Fleet::start() else { return };
    let mut a = fleet.cloud("a").unwrap();
    a.send(&log("train-1"), 0, handovers(1, 0, 5, NOW_MS));
    settle(&a, 5);
    // Of train 1: floor, first, end, count, numbers, data; then the answer.
    let incarnation = INCARNATION.cast_signed();
    let append = |values: &str, numbers: &str, data: &str| {
        let values = values.split(' ').map(|value| format!("ARRAY[{value}]"));
        let values = values.collect::<Vec<_>>().join(", ");
        let append = format!(
            "SELECT log_floor, log_next, added FROM polyrail.append(ARRAY['train-1'],
                ARRAY[{incarnation}], {values}, ARRAY[{numbers}]::bigint[], ARRAY[{data}]::bytea[])"
        );
        fleet.postgres.sql_as("c", &append)
    };
    let end = 1_u64 << 48;
    for far in [format!("{end} 0 {end} 0"), format!("0 5 {end} 0"), format!("0 5 {} 0", end >> 8)] {
        assert_eq!(append(&far, "", "").unwrap(), "", "{far}");
    }
    for invalid in [
        "9 0 5 0",
        "0 5 4 0",
        "-1 0 5 0",
        "0 -1 5 0",
        "0 0 5 -1",
        "NULL::bigint 0 5 0",
        "0 NULL::bigint 9 0",
        "0 0 NULL::bigint 0",
        "0 5 6 NULL::int",
    ] {
        let error = append(invalid, "", "").unwrap_err().to_string();
        assert!(error.contains("span 1 is invalid"), "{invalid}: {error}");
    }
    // Numbers outside of the span, and the same number for two kinds of entries.
    assert_eq!(append("0 5 7 4", "4, 5, 5, 7", "'x', 'x', '\\x02', 'x'").unwrap(), "0|7|1");
    assert_eq!(fleet.rows(), 6);
    // The writer goes on.
    a.send(&log("train-1"), 5, handovers(1, 5, 10, NOW_MS));
    a.wait(SOON, |_, shared| shared.sent == 13).unwrap();
    assert_eq!(fleet.postgres.sql("SELECT floor, next FROM polyrail.log").unwrap(), "0|15");
}

#[test]
fn tls_needs_the_authority_of_the_server() {
    let Some(mut fleet) = Fleet::start() else { return };
    let authority = |name: &str| {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    };
    let ((ours, issuer), (other, _)) = (authority("ours"), authority("other"));
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &issuer).unwrap();
    let folder = fleet.postgres.folder();
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).unwrap();
        fleet.postgres.own(&folder.join(name)).unwrap();
        folder.join(name)
    };
    let certificate = write("server.crt", certificate.pem());
    let key = write("server.key", key.serialize_pem());
    let (ours, other) = (write("ours", ours), write("other", other));
    let (right, wrong) = (write("right", "x\n".into()), write("wrong", "y\n".into()));
    let port = fleet.postgres.port();
    let settings = [
        "listen_addresses=localhost".to_owned(),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", certificate.display()),
        format!("ssl_key_file={}", key.display()),
    ];
    fleet.postgres.configure(&settings.each_ref().map(String::as_str)).unwrap();
    let url = |host: &str| format!("postgres://a@{host}:{port}/polyrail");
    let server = |host: &str, ca: &PathBuf, password: &PathBuf| Server {
        url: url(host),
        password_file: Some(password.clone()),
        ca: Some(ca.clone()),
    };
    for (number, (server, reason)) in [
        (server("localhost", &other, &right), "certificate"),
        (server("127.0.0.1", &ours, &right), "certificate"),
        (server("localhost", &ours, &wrong), "password authentication failed"),
        (server("localhost", &right, &right), "no certificates in PEM"),
        (server("localhost", &ours, &folder_of("missing")), "cannot read"),
    ]
    .into_iter()
    .enumerate()
    {
        let cloud = fleet.cloud_with(&format!("refused-{number}"), server).unwrap();
        let names = |error: &str| error.contains(reason);
        cloud.wait(SOON, |_, shared| shared.error.as_deref().is_some_and(names)).unwrap();
    }
    let mut a = fleet.cloud_with("a", server("localhost", &ours, &right)).unwrap();
    a.send(&log("train-1"), 0, handovers(1, 0, 7, NOW_MS));
    a.wait(SOON, |_, shared| shared.sent == 7).unwrap();
    let encrypted =
        "SELECT DISTINCT ssl, version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE usename = 'a'";
    fleet.postgres.stop();
    a.wait(SOON, |_, shared| !shared.connected).unwrap();
    fleet.postgres.configure(&[]).unwrap();
    a.wait(SOON, |_, shared| shared.connected).unwrap();
    assert_eq!(fleet.postgres.sql(encrypted).unwrap(), "t|TLSv1.3");
}

fn folder_of(name: &str) -> PathBuf {
    PathBuf::from("/nonexistent").join(name)
}
