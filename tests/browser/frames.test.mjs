// The codec of qmq.js, by Node's own test runner: node --test frames.test.mjs

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const source = readFileSync(new URL("../../qmq/protocols/http/qmq.js", import.meta.url), "utf-8");
const { Parser, connect, encodeFrame } = await import(`data:text/javascript,${encodeURIComponent(source)}`);

const bytes = (text) => new TextEncoder().encode(text);
const text = (bytes) => new TextDecoder().decode(bytes);
const joined = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const rows = (frames) => frames.map(({ command, headers, bytes }) => [command, { ...headers }, [...bytes]]);

test("a frame has its headers escaped, and the length of its body in bytes", () => {
  const frame = encodeFrame("SEND", { destination: "/queue/a:b", note: "one\ntwo\\\r", none: undefined }, "grün");

  assert.equal(text(frame), "SEND\ndestination:/queue/a\\cb\nnote:one\\ntwo\\\\\\r\ncontent-length:5\n\ngrün\0");
});

test("a frame without a body has no length", () => {
  assert.equal(text(encodeFrame("UNSUBSCRIBE", { id: 1 })), "UNSUBSCRIBE\nid:1\n\n\0");
});

test("CONNECT is not escaped, and refuses what would be another header", () => {
  assert.equal(text(encodeFrame("CONNECT", { passcode: "a:b\\c" })), "CONNECT\npasscode:a:b\\c\n\n\0");
  assert.throws(() => encodeFrame("CONNECT", { passcode: "x\nlogin:root" }), { code: "bad-header" });
});

test("frames are the same, wherever the bytes are cut", () => {
  const stream = joined(
    bytes("\n\r\nCONNECTED\r\nversion:1.2\r\nserver:a\\b\r\n\r\n\0\n"),
    encodeFrame("MESSAGE", { a: "x:y\nz", "message-id": "o-1" }, Uint8Array.of(0, 10, 255, 0)),
    bytes("\n\nRECEIPT\nreceipt-id:1\n\n\0"),
    encodeFrame("MESSAGE", {}, ""),
    bytes("MESSAGE\n\nno length\0"),
  );
  const whole = rows(new Parser().push(stream));
  assert.deepEqual(whole.slice(0, 2), [
    ["CONNECTED", { version: "1.2", server: "a\\b" }, []],
    ["MESSAGE", { a: "x:y\nz", "message-id": "o-1", "content-length": "4" }, [0, 10, 255, 0]],
  ]);
  assert.deepEqual(whole.map(([command]) => command), ["CONNECTED", "MESSAGE", "RECEIPT", "MESSAGE", "MESSAGE"]);

  for (let cut = 1; cut < stream.length; cut++) {
    const parser = new Parser();
    assert.deepEqual(rows([...parser.push(stream.slice(0, cut)), ...parser.push(stream.slice(cut))]), whole);
  }
  const parser = new Parser();
  assert.deepEqual(rows([...stream].flatMap((byte) => parser.push(Uint8Array.of(byte)))), whole);
});

test("the first of repeated headers counts, also if it is empty", () => {
  const [frame] = new Parser().push(bytes("MESSAGE\na:\na:2\nconstructor:x\n__proto__:y\n\n\0"));

  assert.deepEqual(Object.entries(frame.headers), [["a", ""], ["constructor", "x"], ["__proto__", "y"]]);
});

test("a body belongs to its frame alone", () => {
  const parser = new Parser();
  const data = encodeFrame("MESSAGE", {}, "one");
  const [frame] = parser.push(data);
  data.fill(0);

  assert.equal(text(frame.bytes), "one");
});

test("a large frame in small pieces is joined once", () => {
  const parser = new Parser();
  const data = encodeFrame("MESSAGE", {}, new Uint8Array(16 << 20).fill(7));
  let frames = [];
  for (let at = 0; at < data.length; at += 1000) frames = parser.push(data.subarray(at, at + 1000));

  assert.equal(frames[0].bytes.length, 16 << 20); // Joined with each piece, these would be 130 GB.
  assert.equal(parser.push(encodeFrame("RECEIPT", {}))[0].command, "RECEIPT");
});

test("connect needs URLs of WebSockets", () => {
  for (const urls of [[], ["http://127.0.0.1/stomp"], ["ws://a/stomp", "nonsense"]])
    assert.throws(() => connect(urls), { code: "bad-url" });
});

test("a dedup id counts for one sender", () => {
  let socket;
  globalThis.WebSocket = class {
    constructor() { socket = this; }
    send() {}
    close() {}
  };
  const client = connect("ws://a/stomp");
  const got = [];
  const { id } = client.subscribe("/fanout/f", (message) => got.push(message.body));
  socket.onmessage({ data: "CONNECTED\nversion:1.2\n\n\0" });
  for (const [origin, sender] of [["a-1", "ann"], ["b-1", "bob"], ["c-1", "ann"]])
    socket.onmessage({
      data: `MESSAGE\nsubscription:${id}\nmessage-id:${origin}-1\ndedup-id:1\ndedup-sender:${sender}\n\n${origin}\0`,
    });
  client.close();

  assert.deepEqual(got, ["a-1", "b-1"]); // The third is a copy of the first, from another node.
});
