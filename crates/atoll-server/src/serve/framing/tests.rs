use tokio::io::ReadBuf;

use super::*;

/// Bytes that the HTTP library sees when these arrive in reads of a size, and whether the stream ended at a fault.
fn run(bytes: &[u8], size: usize) -> (Vec<u8>, bool) {
    let (mut framing, mut seen) = (Framing::new(), Vec::new());
    for chunk in bytes.chunks(size) {
        let mut memory = vec![0; size];
        let mut buffer = ReadBuf::new(&mut memory);
        buffer.put_slice(chunk);
        let checked = framing.check(&mut buffer, 0);
        seen.extend_from_slice(buffer.filled());
        if checked.is_err() {
            return (seen, true);
        }
        loop {
            let mut memory = vec![0; size];
            let mut buffer = ReadBuf::new(&mut memory);
            match framing.poll_ended(&mut buffer) {
                None => break,
                Some(Ok(())) if !buffer.filled().is_empty() => {
                    seen.extend_from_slice(buffer.filled());
                }
                Some(_) => return (seen, true),
            }
        }
    }
    (seen, false)
}

const NEXT: &str = "GET /next HTTP/1.1\r\nHost: b\r\n\r\n";

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}{NEXT}")
}

#[test]
fn valid_messages_pass_unchanged_in_any_read_size() {
    for message in [
        format!("\r\n\r\n{NEXT}{NEXT}"),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        post("Content-Length: 3\r\n", "a\nb"),
        post("content-length:\t0 \r\n", ""),
        post(
            "Transfer-Encoding: Chunked\r\n",
            "3;a=\"b\"\r\n\n\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
        ),
        post("transfer-encoding:chunked\r\n", "0\r\nTrailer: x\r\n\r\n"),
        post("X: a\r\nY:\r\n", ""),
    ] {
        for size in [1, 2, 7, 4096] {
            let (seen, ended) = run(message.as_bytes(), size);
            assert_eq!(String::from_utf8_lossy(&seen), message, "{size}");
            assert!(!ended, "{message:?}");
        }
    }
}

#[test]
fn violation_in_a_head_truncates_the_stream() {
    for head in [
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nX: a\rb\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: empty\r\n\r\n",
    ] {
        assert_refused(head);
    }
    for fields in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3, 3\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length:\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n",
    ] {
        assert_refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    }
}

fn assert_refused(head: &str) {
    let stream = format!("{NEXT}{head}{NEXT}");
    for size in [1, 3, 4096] {
        let (seen, ended) = run(stream.as_bytes(), size);
        let seen = String::from_utf8(seen).unwrap();
        assert!(ended, "{head:?} in reads of {size}: {seen:?}");
        let begin = seen.strip_suffix("\0\r\n\r\n").unwrap();
        // The message before it is whole, its own end is missing.
        let cut = begin.strip_prefix(NEXT).unwrap();
        assert!(head.starts_with(cut) && cut.len() < head.len(), "{seen:?}");
    }
}

#[test]
fn violation_in_a_chunk_fails_the_read() {
    for body in [
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "\r\n",
        "-1\r\n",
        "10000000000000000\r\n",
        "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "3;\u{1}\r\nabc\r\n0\r\n\r\n",
        "0\r\nTrailer: x\n\r\n",
        "0\r\nno colon\r\n\r\n",
    ] {
        let stream = post("Transfer-Encoding: chunked\r\n", body);
        for size in [1, 3, 4096] {
            let (seen, ended) = run(stream.as_bytes(), size);
            let seen = String::from_utf8(seen).unwrap();
            assert!(ended && !seen.contains("/next"), "{body:?}: {seen:?}");
            assert!(stream.starts_with(&seen), "{seen:?}");
        }
    }
}

#[test]
fn line_length_is_limited() {
    let long = "x".repeat(MAX_HEAD_BYTES + 1);
    // The HTTP library has received more than it takes, and answers 431.
    let (seen, ended) = run(format!("GET /{long}").as_bytes(), 4096);
    assert!(ended && seen.len() > MAX_HEAD_BYTES);
    let chunk = post("Transfer-Encoding: chunked\r\n", &format!("1;{long}\r\n"));
    let (seen, ended) = run(chunk.as_bytes(), 4096);
    assert!(ended && seen.len() < 3 * MAX_CHUNK_LINE_BYTES);
}
