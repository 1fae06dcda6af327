// A client of QMQ for browsers and Node.js: STOMP 1.2 over WebSocket, over any of several nodes.
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
const FINAL = /^(login-(failed|required)|token-|user-)/; // Refused logins that another node would refuse, too.
const CONNECT_MS = 5000;
const IDS_MAX = 10000; // Of a fanout: so many dedup ids are known.

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c" };
const UNESCAPES = { "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":" };
const escape = (text) => String(text).replace(/[\\\n\r:]/g, (one) => ESCAPES[one]);
const unescape = (text) => text.replace(/\\[\\nrc]/g, (two) => UNESCAPES[two]);

// `crypto.randomUUID` exists only in pages of HTTPS and of the browser's own machine.
const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("-");

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // A body may begin with one.

/** One frame as bytes. `body` is text or a Uint8Array. CONNECT is never escaped (STOMP 1.2, "Value Encoding"). */
export function encodeFrame(command, headers, body) {
  const bytes = body === undefined ? new Uint8Array() : typeof body === "string" ? encoder.encode(body) : body;
  const write = command === "CONNECT" ? String : escape;
  const lines = Object.entries(headers).filter(([, value]) => value !== undefined);
  if (command === "CONNECT" && lines.some(([, value]) => /[\r\n\0]/.test(value)))
    throw new QmqError("bad-header", "login, passcode and token have no line ends");
  if (body !== undefined) lines.push(["content-length", bytes.length]);
  const head = encoder.encode(`${command}\n${lines.map(([n, v]) => `${write(n)}:${write(v)}\n`).join("")}\n`);
  const frame = new Uint8Array(head.length + bytes.length + 1);
  frame.set(head);
  frame.set(bytes, head.length);
  return frame;
}

/** Bytes to frames, however they were cut. */
export class Parser {
  #held = []; // What came of the next frame, in pieces,
  #size = 0; // with so many bytes together,
  #needs = 0; // and so many at least until it is complete.

  push(data) {
    this.#held.push(data);
    this.#size += data.length;
    if (this.#size < this.#needs) return [];
    const joined = new Uint8Array(this.#size);
    this.#held.reduce((place, piece) => (joined.set(piece, place), place + piece.length), 0);
    this.#needs = 0;
    const frames = [];
    let at = 0;
    while (at < joined.length) {
      if (joined[at] === 10 || joined[at] === 13) { at++; continue; } // Heartbeats, and line ends between frames.
      const end = this.#headEnd(joined, at);
      if (end < 0) break;
      const [command, ...lines] = decoder.decode(joined.subarray(at, end)).replace(/\r/g, "").split("\n");
      const headers = Object.create(null); // A header may be named "constructor".
      for (const line of lines.filter(Boolean)) {
        const colon = line.indexOf(":");
        const read = command === "CONNECTED" ? String : unescape;
        headers[read(line.slice(0, colon))] ??= read(line.slice(colon + 1)); // The first of repeated ones counts.
      }
      const length = headers["content-length"];
      const nul = length === undefined ? joined.indexOf(0, end) : end + Number(length);
      if (nul >= joined.length) this.#needs = nul + 1 - at;
      if (nul < 0 || nul >= joined.length) break;
      frames.push({ command, headers, bytes: joined.slice(end, nul) });
      at = nul + 1;
    }
    this.#held = [joined.slice(at)];
    this.#size = joined.length - at;
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

  constructor({ headers, bytes }, settle) {
    Object.assign(this, { headers, bytes, destination: headers.destination });
    this.redelivered = headers.redelivered === "true";
    this.#settle = settle;
  }

  get body() { return decoder.decode(this.bytes); }
  json() { return JSON.parse(this.body); }
  ack() { this.#settle("ACK", this.headers.ack); }
  nack({ requeue = true } = {}) { this.#settle("NACK", this.headers.ack, { requeue }); }
}

/** The error that a node sent, or the reason why the client stopped. */
export class QmqError extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

/** Connect to any of `urls`. Options: `login`, `passcode`, `token`, `onState(state, detail)`, `WebSocket`: npm/qmq.d.ts. */
export const connect = (urls, options = {}) => new Mesh([].concat(urls), options);

class Mesh {
  #urls; #options; #hello; #socket = null; #at = -1; #pause = PAUSE_MS[0]; #timer = null; #beats = null; #life = 0;
  #isUp = false; #isClosed = false; #heard = 0; #beaten = 0; #number = 0;
  #feeds = new Map(); // Subscription id → feed.
  #sends = new Map(); // Receipt → what is not confirmed yet, in order.

  constructor(urls, options) {
    if (!urls.length || !urls.every((url) => /^wss?:\/\/[^/]/.test(url)))
      throw new QmqError("bad-url", "connect needs URLs like wss://HOST:PORT/stomp");
    const { login, passcode, token, WebSocket = globalThis.WebSocket } = options;
    if (!WebSocket)
      throw new QmqError("no-websocket", "no WebSocket here: pass one as an option, or use Node.js 22 or newer");
    const beats = { "heart-beat": `${HEARTBEAT_MS},${HEARTBEAT_MS}`, "on-error": "keep-open" };
    this.#hello = encodeFrame("CONNECT", { "accept-version": "1.2", host: "qmq", ...beats, login, passcode, token });
    this.#urls = urls;
    this.#options = { ...options, WebSocket };
    this.#dial();
  }

  /** Send a message. The promise resolves with the headers of the RECEIPT, when the node has confirmed it. */
  send(destination, body = "", headers = {}) {
    if (this.#isClosed) return Promise.reject(new QmqError("closed", "the client is closed"));
    const receipt = `s${++this.#number}`;
    const dedup = /^\/(topic|temp-queue|control)\//.test(destination) ? {} : { "dedup-id": newId() };
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
    if (this.#isClosed) throw new QmqError("closed", "the client is closed");
    const id = `f${++this.#number}`;
    const vector = destination.startsWith("/fanout/") && from !== "next" ? new Map() : null;
    const feed = { id, destination, handler, ack, headers, onGap, vector, ids: new Map() };
    this.#feeds.set(id, feed);
    if (this.#isUp) this.#begin(feed);
    return { id, unsubscribe: () => this.#end(feed) };
  }

  /** Disconnect for good. What is not confirmed is rejected. */
  close() {
    if (this.#isUp) this.#frame("DISCONNECT", {});
    this.#stop(new QmqError("closed", "the client was closed"));
  }

  #stop(error) {
    this.#isClosed = true;
    this.#life++; // What still comes from the socket counts no more.
    this.#drop();
    this.#socket?.close(1000);
    for (const send of this.#sends.values()) send.reject(error);
    this.#sends.clear();
    this.#feeds.clear();
  }

  #dial() {
    this.#at = (this.#at + 1) % this.#urls.length;
    const [life, parser] = [++this.#life, new Parser()];
    let socket;
    try {
      socket = this.#socket = new this.#options.WebSocket(this.#urls[this.#at], ["v12.stomp"]);
    } catch (error) {
      return this.#lost(life, error.message); // The browser forbids this URL, but perhaps not the next one.
    }
    socket.binaryType = "arraybuffer";
    this.#timer = setTimeout(() => this.#lost(life, "no answer"), CONNECT_MS);
    socket.onopen = () => socket.send(this.#hello);
    socket.onmessage = ({ data }) => {
      if (life !== this.#life) return;
      this.#heard = Date.now();
      if (this.#isUp) this.#beat(); // The timers of a page in the background run once a minute; this runs still.
      for (const frame of parser.push(typeof data === "string" ? encoder.encode(data) : new Uint8Array(data)))
        if (life === this.#life) this.#received(frame);
    };
    socket.onclose = ({ code, reason }) => this.#lost(life, reason || `closed with ${code}`);
  }

  #lost(life, why) {
    if (life !== this.#life || this.#isClosed) return;
    this.#life++;
    this.#drop();
    this.#socket?.close();
    this.#call(this.#options.onState, "disconnected", why);
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
      this.#isUp = true;
      const sends = parseInt(headers["heart-beat"] ?? "0");
      this.#beaten = Date.now();
      this.#beats = setInterval(() => this.#check(sends), HEARTBEAT_MS);
      this.#call(this.#options.onState, "connected", { url: this.#urls[this.#at], headers });
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
      this.#call(this.#options.onState, "refused", error);
    if (!this.#isUp && FINAL.test(error.code)) this.#stop(error);
  }

  #check(interval) {
    this.#pause = PAUSE_MS[0]; // Only now: what ends each connection at once must not be repeated without a pause.
    const silence = Date.now() - this.#heard;
    if (interval && silence > SILENCE * Math.max(interval, HEARTBEAT_MS)) this.#lost(this.#life, "silent");
    else this.#beat();
  }

  #beat() {
    if (Date.now() - this.#beaten < HEARTBEAT_MS - 500) return;
    this.#beaten = Date.now();
    this.#socket.send("\n");
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
      const { status } = await this.send("/control/status", "", { about: feed.destination }).catch(() => ({}));
      if (!status || life !== this.#life || !this.#feeds.has(feed.id)) return;
      feed.vector ??= new Map(Object.entries(JSON.parse(status).vector ?? {}));
    }
    const resume = feed.vector && [...feed.vector].map((pair) => pair.join("=")).join(",");
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
      this.#call(feed.onGap, gap);
      return;
    }
    if (feed.vector) {
      const [, origin, sequence] = /^(.*)-(\d+)$/.exec(frame.headers["message-id"]);
      if (Number(sequence) <= (feed.vector.get(origin) ?? 0)) return;
      feed.vector.set(origin, Number(sequence));
      // A node that died with the only copy of a message has it still when it is back; it was sent again elsewhere.
      const { "dedup-id": named, "dedup-sender": sender, "message-id": own } = frame.headers;
      const id = named === undefined ? own : `${sender ?? ""} ${named}`; // An id counts for one user.
      if ((feed.ids.get(id) ?? origin) !== origin) return;
      feed.ids.set(id, origin);
      if (feed.ids.size > IDS_MAX) feed.ids.delete(feed.ids.keys().next().value);
    }
    const life = this.#life;
    this.#call(feed.handler, new Message(frame, (command, id, headers = {}) => {
      if (life === this.#life && this.#isUp && id !== undefined) this.#frame(command, { id, ...headers });
    }));
  }

  /** Call a function of the page. What it throws is reported as uncaught, and stops nothing here. */
  #call(handler, ...given) {
    try {
      handler?.(...given);
    } catch (error) {
      queueMicrotask(() => { throw error; });
    }
  }
}
