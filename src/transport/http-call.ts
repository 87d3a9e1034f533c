// One HTTP call and its one answer: what the handler reads, and whether the response may still be touched. State: the response until it is
// answered or aborted, the body, and what the call holds of its address. Must never touch the response after either, nor the native request after
// construction.

import type {
  HttpResponse,
  HttpRequest as NativeRequest,
} from "uWebSockets.js";
import { addressText, networkText } from "./address.ts";
import type { AnnouncedBody } from "./http-head.ts";
import {
  BARE_500,
  type WriteReply,
  withHeader,
  writeReply,
  writeReplyAndClose,
  writeReplyHead,
} from "./http-reply.ts";
import { StreamBody } from "./http-stream.ts";
import type { SocketLimits } from "./socket-limits.ts";
import type { TurnEnd } from "./turn-end.ts";
import type {
  HttpReply,
  HttpRequest,
  HttpRoute,
  HttpStream,
  ListenerSpec,
} from "./types.ts";

const NO_BODY = new Uint8Array(0);

/** How long the answer to a refused call waits for the rest of a declared body. Many clients send head and body in two packets. */
const REST_WAIT_MS = 250;

/** What of a call is known before its request is read. */
export interface CallTarget {
  readonly method: string;
  readonly path: string;
  readonly params: readonly string[];
  /** Names of the headers to keep, lower case. */
  readonly headerNames: readonly string[];
  readonly onError: ListenerSpec["onError"];
  readonly turnEnd: TurnEnd;
  readonly limits: SocketLimits;
}

type Outcome = HttpReply | HttpStream;

export class HttpCall implements HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly params: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  /** Set before the handler runs. */
  body: Uint8Array = NO_BODY;
  readonly #onError: ListenerSpec["onError"];
  readonly #turnEnd: TurnEnd;
  readonly #limits: SocketLimits;
  #res: HttpResponse | undefined;
  /** Once the answer is a stream. */
  #stream: StreamBody | undefined;
  #remoteAddress: string | undefined;
  /** Whether the connection's slot was given back. */
  #isReported = false;
  #release: (() => void) | undefined;
  #isBodyOver = false;
  /** Waits for the rest of the body. */
  #refusal:
    | { readonly reply: HttpReply; readonly timer: NodeJS.Timeout }
    | undefined;

  constructor(res: HttpResponse, req: NativeRequest, target: CallTarget) {
    this.method = target.method;
    this.path = target.path;
    this.params = target.params;
    this.query = req.getQuery() ?? ""; // undefined where the URL has no "?", whatever the library's type says
    const headers: Record<string, string> = {};
    for (const name of target.headerNames) headers[name] = req.getHeader(name);
    this.headers = headers;
    this.#onError = target.onError;
    this.#turnEnd = target.turnEnd;
    this.#limits = target.limits;
    this.#res = res;
    if (target.limits.isWatching) this.#report(res);
  }

  get remoteAddress(): string {
    if (this.#remoteAddress !== undefined) return this.#remoteAddress;
    if (this.#res === undefined) return "";
    this.#remoteAddress = addressText(this.#res.getRemoteAddress());
    return this.#remoteAddress;
  }

  /** The peer went away. */
  abort(): void {
    this.#res = undefined;
    clearTimeout(this.#refusal?.timer);
    this.letGo();
    this.#stream?.aborted();
  }

  /** The last byte of the body came. Call it in the native callback. */
  bodyEnded(): void {
    this.#isBodyOver = true;
    this.#finishRefusal();
  }

  /**
   * From now on the call counts against its address, until `letGo` or its answer. False: the address is at its limit, and the connection is
   * closed.
   */
  hold(): boolean {
    const res = this.#res;
    if (res === undefined || this.#reserve(res)) return true;
    this.#res = undefined;
    res.close();
    return false;
  }

  /** Ends `hold`. Safe to call again. */
  letGo(): void {
    this.#release?.();
    this.#release = undefined;
  }

  /** What `admit` says, or a bare 500 where it breaks its contract. */
  judge(
    admit: HttpRoute["admit"],
  ): HttpReply | undefined | Promise<HttpReply | undefined> {
    if (admit === undefined) return undefined;
    try {
      const verdict = admit(this);
      if (!(verdict instanceof Promise)) return verdict;
      return verdict.catch((error: unknown) => this.#broken(error));
    } catch (error) {
      return this.#broken(error);
    }
  }

  /**
   * Answers and closes the connection; `rest` is the body announced. The answer waits a moment for the rest of a declared body that is not large. If
   * it does not end by then, the connection stays open, and the peer (which gets `connection: close`) or uWebSockets.js after 12 s closes it: a
   * close with bytes unread would reset the connection, and many clients would lose the reply. With a chunked body the library would wait
   * while bytes come, so that connection is closed at once. `bodyEnded` must be called for a declared body.
   */
  refuse(reply: HttpReply, rest: AnnouncedBody): void {
    const res = this.#res;
    if (res === undefined) return;
    if (this.#isBodyOver || rest === "none" || rest === "chunked")
      return this.#answerAndClose(res, reply);
    if (rest === "large") return this.#answerAndLinger(res, reply);
    if (!this.#reserve(res)) return this.#answerAndClose(res, reply);
    const timer = setTimeout(() => this.#finishRefusal(), REST_WAIT_MS);
    this.#refusal = { reply, timer };
  }

  /** The same with what `reply` makes of the call. */
  refuseWith(
    reply: (request: HttpRequest) => HttpReply,
    rest: AnnouncedBody,
  ): void {
    try {
      this.refuse(reply(this), rest);
    } catch (error) {
      this.refuse(this.#broken(error), rest);
    }
  }

  /**
   * Runs the handler and answers: at once when it has the reply at once, else when its promise settles. What it throws becomes a bare 500.
   * Call it from a native callback only, where the socket is corked.
   */
  run(
    handle: (request: HttpRequest) => Outcome | Promise<Outcome>,
    write = writeReply,
  ): void {
    try {
      const outcome = handle(this);
      if (outcome instanceof Promise) void this.#later(outcome, write);
      else this.#answer(outcome, write);
    } catch (error) {
      this.#fail(error, write);
    }
  }

  /** The same from anywhere else. */
  runCorked(
    handle: (request: HttpRequest) => Outcome | Promise<Outcome>,
    write = writeReply,
  ): void {
    this.#res?.cork(() => this.run(handle, write));
  }

  #finishRefusal(): void {
    const refusal = this.#refusal;
    const res = this.#res;
    if (refusal === undefined || res === undefined) return;
    this.#refusal = undefined;
    clearTimeout(refusal.timer);
    this.letGo();
    const { reply } = refusal;
    if (this.#isBodyOver) this.#answerAndClose(res, reply);
    else this.#answerAndLinger(res, reply);
  }

  #answerAndLinger(res: HttpResponse, reply: HttpReply): void {
    this.letGo();
    const isBare = reply.status === 204 || this.method === "HEAD";
    if (isBare || !this.#limits.lingers(this.#report(res)))
      return this.#answerAndClose(res, reply);
    const closing = withHeader(reply, "connection", "close");
    res.cork(() => this.#answer(closing, writeReply));
  }

  #answerAndClose(res: HttpResponse, reply: HttpReply): void {
    const write = this.method === "HEAD" ? writeReplyHead : writeReplyAndClose;
    res.cork(() => this.#answer(reply, write));
  }

  async #later(outcome: Promise<Outcome>, write: WriteReply): Promise<void> {
    try {
      const reply = await outcome;
      if (this.#res === undefined) dismiss(reply);
      else this.#res.cork(() => this.#answer(reply, write));
    } catch (error) {
      this.#fail(error, write);
    }
  }

  #answer(reply: Outcome, write: WriteReply): void {
    const res = this.#res;
    if (res === undefined) return dismiss(reply);
    this.#res = undefined;
    this.letGo();
    try {
      if ("opened" in reply) this.#open(reply, res);
      else write(res, reply);
    } catch (error) {
      this.#onError(error, `${this.method} ${this.path}`);
      res.close(); // half written: nothing sound can follow
    }
  }

  #open(stream: HttpStream, res: HttpResponse): void {
    this.#stream = new StreamBody(stream, res, {
      turnEnd: this.#turnEnd,
      onError: this.#onError,
      where: `${this.method} ${this.path}`,
    });
    this.#stream.open();
  }

  #fail(error: unknown, write: WriteReply): void {
    const reply = this.#broken(error);
    this.#res?.cork(() => this.#answer(reply, write));
  }

  #broken(error: unknown): HttpReply {
    this.#onError(error, `${this.method} ${this.path}`);
    return BARE_500;
  }

  /** Counts the call against its address. False: the address is at its limit. */
  #reserve(res: HttpResponse): boolean {
    this.#release ??= this.#limits.held(this.#report(res));
    return this.#release !== undefined;
  }

  /** Gives back the slot that the connection had before its first request. Answers with its network. */
  #report(res: HttpResponse): string {
    const network = networkText(res.getRemoteAddress());
    if (!this.#isReported) this.#limits.requested(network);
    this.#isReported = true;
    return network;
  }
}

/** An answer that nobody is there for. */
function dismiss(reply: Outcome): void {
  if ("opened" in reply) reply.closed();
}
