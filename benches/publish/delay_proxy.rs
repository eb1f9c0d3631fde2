//! A TCP proxy that adds a round trip: bytes are held for half of it in each direction, and a new
//! connection for the whole. It does not limit the bandwidth.
//!
//! `delay_proxy TARGET_PORT ROUND_TRIP_MS` prints the port that it listens on. Each line on its
//! standard input is answered with the connections, requests, those of them that write (PUT, POST
//! and DELETE), and bytes sent and received since the last one. It ends with its standard input.

use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 1 << 18;
const READS: [&[u8]; 2] = [b"GET ", b"HEAD "];
const WRITES: [&[u8]; 3] = [b"PUT ", b"POST ", b"DELETE "];

#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    requests: AtomicU64,
    writes: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counts {
    fn take(&self) -> String {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        format!(
            "{} {} {} {} {}",
            take(&self.connections),
            take(&self.requests),
            take(&self.writes),
            take(&self.sent),
            take(&self.received)
        )
    }
}

type Held = (Instant, Vec<u8>);

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
    let (Some(target), Some(round_trip_ms)) = (number(), number()) else {
        eprintln!("usage: delay_proxy TARGET_PORT ROUND_TRIP_MS");
        std::process::exit(2);
    };
    let round_trip = Duration::from_millis(round_trip_ms);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    let counts = Arc::new(Counts::default());
    let shared = Arc::clone(&counts);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let counts = Arc::clone(&shared);
            thread::spawn(move || connect(client, target as u16, round_trip, &counts));
        }
    });
    for line in io::stdin().lock().lines() {
        line?;
        println!("{}", counts.take());
    }
    Ok(())
}

fn connect(client: TcpStream, target: u16, round_trip: Duration, counts: &Arc<Counts>) {
    counts.connections.fetch_add(1, Ordering::Relaxed);
    thread::sleep(round_trip);
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let up = Arc::clone(counts);
    pass(from_client, server, round_trip / 2, move |data| {
        // A client sends its next request only after the response to the last one.
        let begins = |methods: &[&[u8]]| methods.iter().any(|method| data.starts_with(method));
        let writes = begins(&WRITES);
        up.writes.fetch_add(writes.into(), Ordering::Relaxed);
        up.requests.fetch_add((writes || begins(&READS)).into(), Ordering::Relaxed);
        up.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
    });
    let down = Arc::clone(counts);
    pass(from_server, client, round_trip / 2, move |data| {
        down.received.fetch_add(data.len() as u64, Ordering::Relaxed);
    });
}

/// Passes the bytes of one direction on, each `delay` after it came.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: Duration,
    count: impl Fn(&[u8]) + Send + 'static,
) {
    let (sender, receiver): (Sender<Held>, Receiver<Held>) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            count(&buffer[..read]);
            if sender.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        while let Ok((due, data)) = receiver.recv() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&data).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
