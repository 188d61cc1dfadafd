//! `polyrail pki`: the operator's authority, the nodes' certificates, revocation.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use polyrail_identity::{
    Authority, Certificate, IssueRequest, NodeRole, RevocationList, Serial, read_certificates,
    shown,
};
use polyrail_model::Identity;
use time::OffsetDateTime;

/// `polyrail pki`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create the operator's certificate authority
    Init {
        /// The authority's folder
        #[arg(long)]
        dir: PathBuf,
        /// The authority's name
        #[arg(long, default_value = "Polyrail operator")]
        name: String,
        /// Replace an existing authority; all its certificates become invalid
        #[arg(long)]
        force: bool,
    },
    /// Issue a node's key and certificate: NAME.key and NAME.crt
    Issue {
        /// The authority's folder
        #[arg(long)]
        dir: PathBuf,
        /// The node's role: gateway or cloud
        #[arg(long)]
        role: NodeRole,
        /// The node's name
        #[arg(value_parser = identity)]
        name: Identity,
        /// The certificate's lifetime, in days
        #[arg(long, default_value_t = 397)]
        days: u16,
        /// The folder for the files [default: the authority's folder]
        #[arg(long)]
        out: Option<PathBuf>,
        /// Replace existing files
        #[arg(long)]
        force: bool,
    },
    /// Show certificates and revocation lists
    Show {
        /// PEM files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Check whether this authority signed them
        #[arg(long, value_name = "FILE")]
        authority: Option<PathBuf>,
        /// Check whether this list revokes them
        #[arg(long, value_name = "FILE")]
        crl: Option<PathBuf>,
    },
    /// Revoke a certificate and write the revocation list, revoked.crl
    Revoke {
        /// The authority's folder
        #[arg(long)]
        dir: PathBuf,
        /// The certificate's file or its serial number
        #[arg(value_name = "SERIAL|FILE")]
        target: String,
        /// Revoke a serial number that is not on the authority's record
        #[arg(long)]
        force: bool,
    },
}

/// Runs the command; returns false if a shown certificate is invalid.
pub(crate) fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<bool> {
    match command {
        Command::Init { dir, name, force } => init(&dir, &name, force, out),
        Command::Issue { dir, role, name, days, out: folder, force } => {
            let folder = folder.unwrap_or_else(|| dir.clone());
            issue(&dir, &IssueRequest { name, role, days, out: folder, force }, out)
        }
        Command::Show { files, authority, crl } => {
            show(&files, authority.as_deref(), crl.as_deref(), out)
        }
        Command::Revoke { dir, target, force } => revoke(&dir, &target, force, out),
    }
}

fn init(dir: &Path, name: &str, force: bool, out: &mut dyn Write) -> anyhow::Result<bool> {
    let authority = Authority::create(dir, name, force)?;
    let until = shown(authority.certificate().not_after);
    writeln!(out, "made the authority {name:?} in {}, valid until {until}", dir.display())?;
    writeln!(out, "keep {} secret and backed up", dir.join("ca.key").display())?;
    Ok(true)
}

fn issue(dir: &Path, request: &IssueRequest, out: &mut dyn Write) -> anyhow::Result<bool> {
    let issued = Authority::open(dir)?.issue(request)?;
    let certificate = &issued.certificate;
    writeln!(out, "{}", issued.certificate_file.display())?;
    writeln!(out, "{}", issued.key_file.display())?;
    let (role, until) = (certificate.role, shown(certificate.not_after));
    writeln!(out, "{role} {}, serial {}, valid until {until}", request.name, certificate.serial)?;
    Ok(true)
}

fn revoke(dir: &Path, target: &str, force: bool, out: &mut dyn Write) -> anyhow::Result<bool> {
    let authority = Authority::open(dir)?;
    let file = Path::new(target);
    let (serial, fresh) = if file.exists() {
        authority.revoke_file(file)?
    } else {
        let serial: Serial = target.parse().context("neither a file nor a serial number")?;
        let fresh = authority.revoke(&serial, force)?;
        (serial, fresh)
    };
    let list = authority.revocations_file();
    let what = if fresh { "revoked" } else { "was revoked before:" };
    writeln!(out, "{what} {serial}; bring {} to the nodes", list.display())?;
    Ok(true)
}

fn show(
    files: &[PathBuf],
    authority: Option<&Path>,
    crl: Option<&Path>,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let authority = authority.map(read_certificates).transpose()?;
    let authority = authority.as_ref().and_then(|all| all.first());
    let lists = crl.map(RevocationList::read).transpose()?;
    let mut fine = true;
    for file in files {
        if let Ok(lists) = RevocationList::read(file) {
            for list in &lists {
                show_list(file, list, authority, out)?;
            }
            continue;
        }
        match read_certificates(file) {
            Ok(certificates) => {
                for certificate in &certificates {
                    show_certificate(file, certificate, authority, lists.as_deref(), out)?;
                }
            }
            Err(error) => {
                fine = false;
                writeln!(out, "error: {error}")?;
            }
        }
    }
    Ok(fine)
}

fn show_certificate(
    file: &Path,
    certificate: &Certificate,
    authority: Option<&Certificate>,
    lists: Option<&[RevocationList]>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let now = OffsetDateTime::now_utc();
    let identity = match &certificate.identity {
        Some(identity) => identity.to_string(),
        None => format!("none ({})", certificate.subject),
    };
    let state = match (certificate.not_before, certificate.not_after) {
        (from, _) if now < from => "not begun".to_owned(),
        (_, until) if now > until => "EXPIRED".to_owned(),
        (_, until) => format!("{} days left", (until - now).whole_days()),
    };
    writeln!(out, "{}", file.display())?;
    writeln!(out, "  identity     {identity}")?;
    writeln!(out, "  role         {}", certificate.role)?;
    writeln!(out, "  serial       {}", certificate.serial)?;
    writeln!(out, "  valid from   {}", shown(certificate.not_before))?;
    writeln!(out, "  valid until  {} ({state})", shown(certificate.not_after))?;
    writeln!(out, "  SHA-256      {}", certificate.fingerprint_text())?;
    if let Some(authority) = authority {
        writeln!(out, "  signature    {}", verdict(certificate.is_signed_by(authority)))?;
    }
    if let Some(lists) = lists {
        match lists.iter().find_map(|list| list.revoked_since(certificate)) {
            Some(since) => writeln!(out, "  revoked      since {}", shown(since))?,
            None => writeln!(out, "  revoked      no")?,
        }
    }
    Ok(())
}

fn show_list(
    file: &Path,
    list: &RevocationList,
    authority: Option<&Certificate>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    writeln!(out, "{}", file.display())?;
    writeln!(out, "  revocation list {} of {}", list.number, list.issuer)?;
    writeln!(out, "  made         {}", shown(list.this_update))?;
    if let Some(authority) = authority {
        writeln!(out, "  signature    {}", verdict(list.is_signed_by(authority)))?;
    }
    for (serial, since) in &list.entries {
        writeln!(out, "  revoked      {serial} since {}", shown(*since))?;
    }
    Ok(())
}

fn verdict(signed: bool) -> &'static str {
    if signed { "by the authority" } else { "NOT by the authority" }
}

fn identity(text: &str) -> Result<Identity, String> {
    Identity::new(text).map_err(|error| error.to_string())
}
