//! Connections that are encrypted, by the words PostgreSQL's own clients use: `sslmode` and `sslrootcert` in the URL.
//!
//! `disable` never, `prefer` where the server offers it, `require` always; these three check nothing. `verify-ca` and `verify-full`
//! also check that the certificate is signed by somebody trusted and is made out to the server's name. Where the URL says nothing it
//! is `prefer` for a server on this machine and `verify-full` for any other: a password goes to nobody who is not who they say.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::StoreError;

/// The encryption settings of a URL, and the URL without them.
pub struct Wanted {
    pub url: String,
    pub mode: SslMode,
    verify: bool,
    roots: Option<String>,
    /// The URL says nothing about it.
    implied: bool,
}

impl Wanted {
    pub fn read(url: &str) -> Result<Wanted, StoreError> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut given, mut roots, mut rest) = (None, None, Vec::new());
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => given = Some(value()),
                "sslrootcert" => roots = Some(value()).filter(|path| path != "system"),
                _ => rest.push(part),
            }
        }
        let url = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
        let implied = given.is_none();
        let mode = given.unwrap_or_else(|| if is_local(&url) { "prefer" } else { "verify-full" }.to_owned());
        let (mode, verify) = match mode.as_str() {
            "disable" => (SslMode::Disable, false),
            "allow" | "prefer" => (SslMode::Prefer, false),
            "require" => (SslMode::Require, false),
            "verify-ca" | "verify-full" => (SslMode::Require, true),
            other => {
                let words = "disable, prefer, require, verify-ca or verify-full";
                return Err(StoreError::Refused(format!("the database URL: sslmode `{other}` is not {words}")));
            }
        };
        Ok(Wanted { url, mode, verify, roots, implied })
    }

    /// Advice when a connection fails because of settings that the URL lacks.
    pub fn remedy(&self) -> Option<&'static str> {
        (self.implied && self.verify).then_some(
            "connections to another machine are made with sslmode=verify-full unless the URL says otherwise: add \
             sslrootcert=/path/ca.pem to trust its authority, or sslmode=require (encrypted, nobody checked) or sslmode=disable \
             where the network is trusted",
        )
    }

    pub fn connector(&self) -> Result<MakeRustlsConnect, StoreError> {
        let refused = |error: String| StoreError::Refused(format!("encryption cannot be set up: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string()))?;
        let config = if self.verify {
            builder.with_root_certificates(self.trusted().map_err(refused)?).with_no_client_auth()
        } else {
            let anybody = Arc::new(Anybody { provider });
            builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth()
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn trusted(&self) -> Result<RootCertStore, String> {
        let mut store = RootCertStore::empty();
        let certificates: Vec<CertificateDer<'static>> = match &self.roots {
            Some(path) => CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect)
                .map_err(|error| format!("sslrootcert {path}: {error}"))?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        store.add_parsable_certificates(certificates);
        if store.is_empty() {
            Err("no certificate to trust was found; name one by sslrootcert".into())
        } else {
            Ok(store)
        }
    }
}

/// Whether every server that a URL names is this machine: a socket, `localhost` or a loopback address.
fn is_local(url: &str) -> bool {
    // One that cannot be read is refused elsewhere.
    let Ok(config) = tokio_postgres::Config::from_str(url) else { return false };
    if !config.get_hostaddrs().is_empty() {
        return config.get_hostaddrs().iter().all(IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let bare = name.trim_start_matches('[').trim_end_matches(']');
            name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
        }
    })
}

/// Whether a connection failed because of encryption: a server that offers none, or a certificate that nobody trusts.
pub fn is_about_tls(error: &tokio_postgres::Error, deepest: &dyn std::error::Error) -> bool {
    let words = format!("{error} {deepest}").to_ascii_lowercase();
    ["tls", "certificate", "dns name"].iter().any(|word| words.contains(word))
}

/// Believes every certificate, as `sslmode=require` does: the line is encrypted, but nobody knows to whom.
#[derive(Debug)]
struct Anybody {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_url_are_read_and_taken_out() {
        let url = "postgres://u@h/d?application_name=x&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem";
        let wanted = Wanted::read(url).expect("read");
        assert_eq!(wanted.url, "postgres://u@h/d?application_name=x");
        assert_eq!(
            (wanted.mode, wanted.verify, wanted.roots.as_deref()),
            (SslMode::Require, true, Some("/etc/ca.pem"))
        );
        let plain = Wanted::read("postgres://u@h/d?sslmode=prefer").expect("read");
        assert_eq!((plain.url.as_str(), plain.mode, plain.verify), ("postgres://u@h/d", SslMode::Prefer, false));
        assert!(Wanted::read("postgres://u@h/d?sslmode=maybe").is_err());
        assert!(
            Wanted::read("postgres://u@h/d?sslmode=verify-ca&sslrootcert=/nowhere").expect("read").connector().is_err()
        );
    }

    #[test]
    fn another_machine_is_verified_unless_the_url_says_otherwise() {
        for local in [
            "postgres://u@localhost/d",
            "postgres://u@127.0.0.1:5433/d?application_name=x",
            "postgres://u@[::1]/d",
            "postgres://u@%2Fvar%2Frun%2Fpostgresql/d",
            "postgres:///d?host=/var/run/postgresql",
            "postgres://u@localhost,127.0.0.2/d",
        ] {
            let wanted = Wanted::read(local).expect("read");
            assert_eq!((wanted.mode, wanted.verify, wanted.remedy()), (SslMode::Prefer, false, None), "{local}");
        }
        for other in [
            "postgres://u@db/d",
            "postgres://u@10.0.0.1/d",
            "postgres://u@localhost,db.example/d",
            "postgres://u@localhost.example/d",
            "postgres:///d?host=db.example",
            "postgres://u@localhost/d?hostaddr=10.0.0.1",
        ] {
            let wanted = Wanted::read(other).expect("read");
            assert_eq!((wanted.mode, wanted.verify), (SslMode::Require, true), "{other}");
            assert!(wanted.remedy().is_some_and(|words| words.contains("sslmode=disable")), "{other}");
            let join = if other.contains('?') { '&' } else { '?' };
            let said = Wanted::read(&format!("{other}{join}sslmode=disable")).expect("read");
            assert_eq!((said.mode, said.verify, said.remedy()), (SslMode::Disable, false, None), "{other}");
        }
    }
}
