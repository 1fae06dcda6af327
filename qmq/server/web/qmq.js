// A client of QMQ for browsers: STOMP 1.2 over WebSocket, over any of several nodes.
//
//   import { connect } from "/qmq.js";
//   const mesh = connect(["ws://127.0.0.1:61680/stomp", "ws://127.0.0.1:61681/stomp"]);
//   await mesh.send("/queue/jobs", "resize 17");              // resolves when the node has confirmed it
//   const feed = mesh.subscribe("/fanout/log", (message) => console.log(message.body));
//
// When a connection ends, the client goes to the next node: it subscribes again, a fanout continues exactly behind what
// it has delivered, and what was not confirmed is sent again under the same dedup id, so it is accepted once.

const HEARTBEAT_MS = 10000;
const SILENCE = 2.5; // So many intervals without a byte, and the connection counts as dead.
const PAUSE_MS = [50, 2000]; // Before the next node is tried: the first pause, and the longest.
const CONNECT_MS = 5000;

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c" };
const UNESCAPES = { "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":" };
const escape = (text) => String(text).replace(/[\\\n\r:]/g, (one) => ESCAPES[one]);
const unescape = (text) => text.replace(/\\[\\nrc]/g, (two) => UNESCAPES[two]);

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** One frame as bytes. `body` is text or a Uint8Array. CONNECT is never escaped (STOMP 1.2, "Value Encoding"). */
export function encodeFrame(command, headers, body) {
  const bytes = body === undefined ? new Uint8Array() : typeof body === "string" ? encoder.encode(body) : body;
  const write = command === "CONNECT" ? String : escape;
  const lines = Object.entries(headers).filter(([, value]) => value !== undefined);
  if (body !== undefined) lines.push(["content-length", bytes.length]);
  const head = encoder.encode(`${command}\n${lines.map(([n, v]) => `${write(n)}:${write(v)}\n`).join("")}\n`);
  const frame = new Uint8Array(head.length + bytes.length + 1);
  frame.set(head);
  frame.set(bytes, head.length);
  return frame;
}

/** Bytes to frames, however they were cut. */
export class Parser {
  #held = new Uint8Array();

  push(data) {
    const joined = new Uint8Array(this.#held.length + data.length);
    joined.set(this.#held);
    joined.set(data, this.#held.length);
    const frames = [];
    let at = 0;
    while (at < joined.length) {
      if (joined[at] === 10 || joined[at] === 13) { at++; continue; } // Heartbeats, and line ends between frames.
      const end = this.#headEnd(joined, at);
      if (end < 0) break;
      const [command, ...lines] = decoder.decode(joined.subarray(at, end)).replace(/\r/g, "").split("\n");
      const headers = {};
      for (const line of lines.filter(Boolean)) {
        const colon = line.indexOf(":");
        const [name, value] = [line.slice(0, colon), line.slice(colon + 1)];
        const [key, text] = command === "CONNECTED" ? [name, value] : [unescape(name), unescape(value)];
        if (!(key in headers)) headers[key] = text; // The first of repeated ones counts.
      }
      const length = headers["content-length"];
      const nul = length === undefined ? joined.indexOf(0, end) : end + Number(length);
      if (nul < 0 || nul >= joined.length) break;
      frames.push({ command, headers, bytes: joined.slice(end, nul) });
      at = nul + 1;
    }
    this.#held = joined.slice(at);
    return frames;
  }

  #headEnd(bytes, from) {
    for (let at = bytes.indexOf(10, from); at >= 0; at = bytes.indexOf(10, at + 1)) {
      const next = bytes[at + 1] === 13 ? at + 2 : at + 1;
      if (bytes[next] === 10) return next + 1;
    }
    return -1;
  }
}

/** A delivered message. `ack()` and `nack()` settle it; they do nothing once its connection has ended. */
class Message {
  #settle;

  constructor(frame, settle) {
    this.headers = frame.headers;
    this.bytes = frame.bytes;
    this.destination = frame.headers.destination;
    this.redelivered = frame.headers.redelivered === "true";
    this.#settle = settle;
  }

  get body() { return decoder.decode(this.bytes); }
  json() { return JSON.parse(this.body); }
  ack() { this.#settle("ACK", this.headers.ack); }
  nack({ requeue = true } = {}) { this.#settle("NACK", this.headers.ack, { requeue }); }
}

/** The error that a node sent, or the reason why the client stopped. */
export class QmqError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/**
 * Connect to any of `urls`. Options: `login` and `passcode`, or `token`; `onState(state, detail)` is called with
 * "connected", "disconnected" and "refused".
 */
export function connect(urls, options = {}) {
  return new Mesh([].concat(urls), options);
}

class Mesh {
  #urls; #options; #socket = null; #at = -1; #pause = PAUSE_MS[0]; #timer = null; #beats = null; #life = 0;
  #isUp = false; #isClosed = false; #heard = 0; #number = 0;
  #feeds = new Map(); // Subscription id → feed.
  #sends = new Map(); // Receipt → what is not confirmed yet, in order.

  constructor(urls, options) {
    if (!urls.length) throw new QmqError("bad-url", "connect needs at least one URL");
    this.#urls = urls;
    this.#options = options;
    this.#dial();
  }

  /** Send a message. The promise resolves with the headers of the RECEIPT, when the node has confirmed it. */
  send(destination, body = "", headers = {}) {
    if (this.#isClosed) return Promise.reject(new QmqError("closed", "the client is closed"));
    const receipt = `s${++this.#number}`;
    const stored = !destination.startsWith("/topic/") && !destination.startsWith("/temp-queue/");
    const dedup = stored && !destination.startsWith("/control/") ? { "dedup-id": crypto.randomUUID() } : {};
    return new Promise((resolve, reject) => {
      const all = { ...dedup, ...headers, destination, receipt };
      const send = { destination, body, headers: all, resolve, reject, tried: false };
      this.#sends.set(receipt, send);
      if (this.#isUp) this.#put(send);
    });
  }

  /**
   * Subscribe; `handler(message)` is called for each message. `ack` is "auto" or "client-individual". A fanout begins
   * with its first kept message, or with the next one if `from` is "next". `onGap` is called with what is kept no more.
   */
  subscribe(destination, handler, { ack = "auto", from = "first", headers = {}, onGap = () => {} } = {}) {
    const id = `f${++this.#number}`;
    const feed = { id, destination, handler, ack, from, headers, onGap, vector: null };
    if (destination.startsWith("/fanout/")) feed.vector = from === "next" ? null : new Map();
    this.#feeds.set(id, feed);
    if (this.#isUp) this.#begin(feed);
    return { id, unsubscribe: () => this.#end(feed) };
  }

  /** Disconnect for good. What is not confirmed is rejected. */
  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    if (this.#isUp) this.#frame("DISCONNECT", {});
    this.#drop();
    this.#socket?.close(1000);
    for (const send of this.#sends.values()) send.reject(new QmqError("closed", "the client was closed"));
    this.#sends.clear();
    this.#feeds.clear();
  }

  #dial() {
    this.#at = (this.#at + 1) % this.#urls.length;
    const life = ++this.#life;
    const parser = new Parser();
    const socket = (this.#socket = new WebSocket(this.#urls[this.#at], ["v12.stomp"]));
    socket.binaryType = "arraybuffer";
    this.#timer = setTimeout(() => this.#lost(life, "no answer"), CONNECT_MS);
    socket.onopen = () => {
      const { login, passcode, token } = this.#options;
      const beats = `${HEARTBEAT_MS},${HEARTBEAT_MS}`;
      const headers = { "accept-version": "1.2", host: "qmq", "heart-beat": beats, login, passcode, token };
      socket.send(encodeFrame("CONNECT", { ...headers, "on-error": "keep-open" }));
    };
    socket.onmessage = ({ data }) => {
      if (life !== this.#life) return;
      this.#heard = Date.now();
      for (const frame of parser.push(typeof data === "string" ? encoder.encode(data) : new Uint8Array(data)))
        if (life === this.#life) this.#received(frame);
    };
    socket.onclose = ({ code, reason }) => this.#lost(life, reason || `closed with ${code}`);
  }

  #lost(life, why) {
    if (life !== this.#life || this.#isClosed) return;
    this.#life++;
    this.#drop();
    this.#socket.close();
    this.#options.onState?.("disconnected", why);
    this.#timer = setTimeout(() => this.#dial(), Math.random() * this.#pause);
    this.#pause = Math.min(this.#pause * 2, PAUSE_MS[1]);
  }

  #drop() {
    this.#isUp = false;
    clearTimeout(this.#timer);
    clearInterval(this.#beats);
  }

  #received({ command, headers, bytes }) {
    if (command === "CONNECTED") {
      clearTimeout(this.#timer);
      this.#pause = PAUSE_MS[0];
      this.#isUp = true;
      const [sends, expects] = headers["heart-beat"].split(",").map(Number);
      if (sends || expects) this.#beats = setInterval(() => this.#beat(sends), HEARTBEAT_MS);
      this.#options.onState?.("connected", { url: this.#urls[this.#at], headers });
      for (const feed of this.#feeds.values()) this.#begin(feed);
      for (const send of this.#sends.values()) this.#put(send);
    } else if (command === "RECEIPT") {
      const send = this.#sends.get(headers["receipt-id"]);
      this.#sends.delete(headers["receipt-id"]);
      send?.resolve(headers);
    } else if (command === "MESSAGE") {
      this.#deliver({ headers, bytes });
    } else if (command === "ERROR") {
      this.#refused(new QmqError(headers["error-code"], headers.message), headers);
    }
  }

  #refused(error, headers) {
    const send = this.#sends.get(headers["receipt-id"]);
    this.#sends.delete(headers["receipt-id"]);
    if (send) send.reject(error);
    else if (this.#feeds.delete(headers.subscription) || !this.#isUp || error.code !== "stopping")
      this.#options.onState?.("refused", error);
    if (!this.#isUp && /^(login|token|user)/.test(error.code)) this.close(); // Another node would say the same.
  }

  #beat(expected) {
    const silence = Date.now() - this.#heard;
    if (expected && silence > SILENCE * Math.max(expected, HEARTBEAT_MS)) this.#lost(this.#life, "silent");
    else this.#socket.send("\n");
  }

  #frame(command, headers, body) {
    this.#socket.send(encodeFrame(command, headers, body));
  }

  #put(send) {
    const again = send.tried && "dedup-id" in send.headers ? { redelivered: true } : {};
    send.tried = true;
    this.#frame("SEND", { ...send.headers, ...again }, send.body);
  }

  async #begin(feed) {
    if (feed.destination.startsWith("/fanout/") && feed.vector === null) {
      // Only the node knows where "next" is; behind that the stream continues on every node.
      const life = this.#life;
      const { status } = await this.send("/control/status").catch(() => ({}));
      if (!status || life !== this.#life || !this.#feeds.has(feed.id)) return;
      feed.vector ??= new Map(Object.entries(JSON.parse(status).vector));
    }
    const resume = feed.vector && [...feed.vector].map(([origin, last]) => `${origin}=${last}`).join(",");
    const headers = { ...feed.headers, id: feed.id, destination: feed.destination, ack: feed.ack };
    this.#frame("SUBSCRIBE", resume ? { ...headers, "qmq-resume": resume } : headers);
  }

  #end(feed) {
    if (this.#feeds.delete(feed.id) && this.#isUp) this.#frame("UNSUBSCRIBE", { id: feed.id });
  }

  #deliver(frame) {
    const feed = this.#feeds.get(frame.headers.subscription);
    if (!feed) return;
    const gap = frame.headers["qmq-gap"];
    if (gap !== undefined) {
      for (const part of gap.split(",")) {
        const [origin, range] = part.split("=");
        feed.vector?.set(origin, Number(range.split("-")[1]));
      }
      feed.onGap(gap);
      return;
    }
    if (feed.vector) {
      const [, origin, sequence] = /^(.*)-(\d+)$/.exec(frame.headers["message-id"]);
      if (Number(sequence) <= (feed.vector.get(origin) ?? 0)) return;
      feed.vector.set(origin, Number(sequence));
    }
    const life = this.#life;
    feed.handler(new Message(frame, (command, id, headers = {}) => {
      if (life === this.#life && this.#isUp && id !== undefined) this.#frame(command, { id, ...headers });
    }));
  }
}
