//! `--ca-file`: reads the certificate authorities that sandboxes trust.

use std::path::{Path, PathBuf};

use atoll_model::Error;
use base64::Engine as _;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Reads all certificates of PEM files. Text outside of PEM blocks is skipped.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<String>, Error> {
    let mut all = Vec::new();
    for file in files {
        for certificate in read_one(file)? {
            if !all.contains(&certificate) {
                all.push(certificate);
            }
        }
    }
    Ok(all)
}

fn read_one(file: &Path) -> Result<Vec<String>, Error> {
    let text = std::fs::read(file).map_err(|error| wrong(file, &error.to_string()))?;
    if text.windows(12).any(|window| window == b"PRIVATE KEY-") {
        return Err(wrong(
            file,
            "it has a private key, and every sandbox can read what it trusts",
        ));
    }
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| wrong(file, &error.to_string()))?;
        let number = found.len() + 1;
        RootCertStore::empty()
            .add(certificate.clone())
            .map_err(|error| wrong(file, &format!("certificate {number}: {error}")))?;
        found.push(pem(&certificate));
    }
    if found.is_empty() {
        return Err(wrong(file, "it has no certificate"));
    }
    Ok(found)
}

fn wrong(file: &Path, why: &str) -> Error {
    Error::invalid(
        "ca-file",
        format!("--ca-file {}: {why}", file.display()),
        "name a PEM file with the certificates of authorities, and nothing secret",
    )
}

fn pem(certificate: &[u8]) -> String {
    const LINE: usize = 64;
    let digits = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in digits.as_bytes().chunks(LINE) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_file(text: &str) -> Result<Vec<String>, Error> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        read(&[file.path().to_owned()])
    }

    fn certificate() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["test.example".to_owned()]);
        let made = made.expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn certificates_are_deduplicated_without_surrounding_text() {
        let ((one, _), (other, _)) = (certificate(), certificate());
        let found = try_file(&format!("# a comment\n{one}{other}{one}")).expect("two");
        assert_eq!(found.len(), 2);
        for (found, given) in found.iter().zip([&one, &other]) {
            assert_eq!(found.trim_end(), given.replace("\r\n", "\n").trim_end());
        }
    }

    #[test]
    fn invalid_certificate_file_is_refused_by_name() {
        let (one, key) = certificate();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, problem) in [
            (String::new(), "no certificate"),
            ("hello".into(), "no certificate"),
            (format!("{one}{key}"), "private key"),
            (one.replace("-----END", "----END"), ""),
            (format!("{one}{broken}"), "certificate 2"),
        ] {
            let error = try_file(&text).expect_err(problem);
            assert_eq!(error.details["field"], "ca-file");
            assert!(error.message.contains(problem), "{}", error.message);
        }
        let error = read(&["/nowhere/ca.pem".into()]).expect_err("absent");
        assert!(
            error.message.contains("/nowhere/ca.pem"),
            "{}",
            error.message
        );
    }
}
