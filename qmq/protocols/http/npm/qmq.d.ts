// Types of qmq.js. docs/browsers.md has what each of these does.

/** What a message or a confirmation carries beside its body. */
export type Headers = Record<string, string>;

/** Of a SEND or SUBSCRIBE: `undefined` leaves a header out. */
export type GivenHeaders = Record<string, string | number | boolean | undefined>;

export type State = "connected" | "disconnected" | "refused";

export interface ConnectOptions {
  login?: string;
  passcode?: string;
  /** In place of `login` and `passcode`. */
  token?: string;
  /** `detail`: where it is connected, why it is not, or the refusal. */
  onState?: (state: State, detail: { url: string; headers: Headers } | string | QmqError) => void;
  /** The class of the connections, where the global one is absent or another one is wanted. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocketLike;
}

/** What is used of a WebSocket. */
export interface WebSocketLike {
  binaryType: any;
  onopen: any;
  onmessage: any;
  onclose: any;
  send(data: any): void;
  close(code?: number): void;
}

export interface SubscribeOptions {
  /** Default: "auto". */
  ack?: "auto" | "client-individual";
  /** Where a fanout begins; default: "first". */
  from?: "first" | "next";
  headers?: GivenHeaders;
  /** Called with the ranges of a fanout that are kept no more, as in the header `qmq-gap`. */
  onGap?: (gap: string) => void;
}

export interface Subscription {
  readonly id: string;
  unsubscribe(): void;
}

export interface Message {
  readonly destination: string;
  readonly headers: Headers;
  readonly bytes: Uint8Array;
  /** The bytes as text, which is UTF-8. */
  readonly body: string;
  readonly redelivered: boolean;
  /** The body parsed. Throws SyntaxError. */
  json(): any;
  /** With `ack: "client-individual"`; without effect when the connection has ended. */
  ack(): void;
  nack(options?: { requeue?: boolean }): void;
}

export interface Mesh {
  /** Resolves with the headers of the RECEIPT when the node has confirmed the message. Rejects with QmqError. */
  send(destination: string, body?: string | Uint8Array, headers?: GivenHeaders): Promise<Headers>;
  subscribe(destination: string, handler: (message: Message) => void, options?: SubscribeOptions): Subscription;
  /** Disconnects for good. What is not confirmed is rejected. */
  close(): void;
}

/** An error of a node, by its code (docs/stomp.md), or why the client has ended. */
export class QmqError extends Error {
  readonly code: string;
}

/** Connects to any of these nodes, and goes to the next one when the connection ends. Throws QmqError. */
export function connect(urls: string | string[], options?: ConnectOptions): Mesh;
