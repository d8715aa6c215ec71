//! Packages from registries: sandboxes reach the registries of this machine's own configuration, at any address.
//!
//! A registry may have an address that is refused to sandboxes, and a certificate of a private authority. Names and addresses
//! are what npm, pip and apt of this machine say, and authorities what it trusts.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::Command;

use atoll_model::is_blocked;
use atoll_testkit::run;

use crate::cli::{done, output_text};

/// Bundles of certificates of distributions.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Output of a command on this machine, which must succeed.
fn host(line: &str) -> String {
    let output = run(Command::new("sh").args(["-c", line]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The IPv4 addresses of the host of a URL, and its port.
fn addresses(url: &str) -> (Vec<Ipv4Addr>, u16) {
    let (scheme, rest) = url.split_once("://").unwrap_or_else(|| panic!("{url:?}"));
    let authority = rest.split(['/', '?', '#']).next().unwrap();
    let host = authority.rsplit('@').next().unwrap();
    let usual = if scheme == "http" { 80 } else { 443 };
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, port.parse().unwrap()),
        None => (host, usual),
    };
    let all = (name, port).to_socket_addrs();
    let all = all.unwrap_or_else(|error| panic!("{url}: {error}"));
    let four = all.filter_map(|address| match address {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    });
    (four.collect(), port)
}

/// Addresses of these URLs that are refused to sandboxes, each with its port.
fn refused(urls: &[String]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for url in urls {
        let (addresses, port) = addresses(url);
        let refused = addresses.into_iter().filter(|address| is_blocked(*address));
        all.extend(refused.map(|address| format!("{address}:{port}")));
    }
    all
}

/// Runs a line with variables in a sandbox that may connect to these URLs; returns its output.
fn sandbox(urls: &[String], variables: &[String], line: &str) -> String {
    let mut words = vec!["run".to_owned(), "--net".into(), "internet".into()];
    let mut option = |name: &str, value: &str| words.extend([name.into(), value.into()]);
    for exception in &refused(urls) {
        option("--egress-allow", exception);
    }
    if let Some(bundle) = BUNDLES.iter().find(|path| Path::new(path).exists()) {
        option("--ca-file", bundle);
    }
    for variable in variables {
        option("--env", variable);
    }
    words.extend(["--", "sh", "-ec", line].map(String::from));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = done(&words);
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Fetches a URL in a sandbox, with and without the operator's exceptions, for as long as one connection may take.
fn fetch(url: &str, options: &[&str]) -> std::process::Output {
    let program = "import sys, urllib.request as it; it.urlopen(sys.argv[1], timeout=20).read(1)";
    let words = ["run", "--net", "internet"];
    let command = ["--", "python3", "-c", program, url];
    done(&[&words[..], options, &command].concat())
}

/// The tests below prove something about an exception only if its registry needs it.
#[test]
fn a_registry_with_a_refused_address_needs_the_exception() {
    let registry = host("npm config get registry 2>/dev/null");
    let bundle = BUNDLES.iter().find(|path| Path::new(path).exists());
    let authority: Vec<&str> = bundle.iter().flat_map(|path| ["--ca-file", path]).collect();
    let exceptions = refused(std::slice::from_ref(&registry));
    let open: Vec<&str> = exceptions
        .iter()
        .flat_map(|exception| ["--egress-allow", exception])
        .collect();
    let fetched = fetch(&registry, &[&open[..], &authority].concat());
    assert!(fetched.status.success(), "{}", output_text(&fetched));
    if !open.is_empty() {
        let closed = fetch(&registry, &authority);
        assert!(!closed.status.success(), "{}", output_text(&closed));
        assert!(
            output_text(&closed).contains("URLError"),
            "{}",
            output_text(&closed)
        );
    }
}

#[test]
fn npm_installs_a_package() {
    let registry = host("npm config get registry 2>/dev/null");
    let archive = host("npm view lodash dist.tarball 2>/dev/null");
    let variable = format!("npm_config_registry={registry}");
    let text = sandbox(
        &[registry, archive],
        &[variable],
        "npm install lodash && node -e 'console.log(require(\"lodash\").add(40, 2))'",
    );
    assert!(text.contains("added 1 package"), "{text}");
    assert!(text.ends_with("42\n"), "{text}");
}

#[test]
fn pip_installs_a_package() {
    let configured = "pip config get global.index-url 2>/dev/null || pip config get install.index-url 2>/dev/null || true";
    let index = std::env::var("PIP_INDEX_URL").unwrap_or_else(|_| host(configured));
    let index = if index.is_empty() {
        host("python3 -c 'from pip._internal.models.index import PyPI; print(PyPI.simple_url)'")
    } else {
        index
    };
    // Archives may be on another host.
    let archive = host(&format!(
        "python3 -c 'import re, sys, urllib.parse, urllib.request as it; at = sys.argv[1].rstrip(\"/\") + \"/six/\"; \
         page = it.urlopen(at, timeout=60).read().decode(); \
         print(urllib.parse.urljoin(at, re.search(\"href=.([^\\\"#]+)\", page)[1]))' {index}"
    ));
    let variable = format!("PIP_INDEX_URL={index}");
    let text = sandbox(
        &[index, archive],
        &[variable],
        "python3 -m pip install --quiet --no-deps --target packages six >&2; \
         PYTHONPATH=packages python3 -c 'import six; print(six.__file__)'",
    );
    assert!(text.ends_with("packages/six.py\n"), "{text}");
}

#[test]
fn apt_installs_a_package_as_root_and_through_sudo() {
    // Uses only the sources of this distribution; other sources may be unreachable.
    let origin = host(". /etc/os-release && echo $ID");
    let format = "apt-get indextargets --format '$(ORIGIN)|$(URI)' 'Created-By: Packages'";
    let all = host(format);
    let of = |line: &str| {
        let (from, url) = line.split_once('|')?;
        from.eq_ignore_ascii_case(&origin).then(|| url.to_owned())
    };
    let urls: BTreeSet<String> = all.lines().filter_map(of).collect();
    assert!(!urls.is_empty(), "{all}");
    let urls: Vec<String> = urls.into_iter().collect();
    let text = sandbox(
        &urls,
        &[],
        "sudo apt-get -q update >&2; sudo apt-get -qy install --no-install-recommends hello >&2; hello; \
         sudo apt-get -qy remove hello >&2; ! hello 2>/dev/null",
    );
    assert_eq!(text, "Hello, world!\n");
}
