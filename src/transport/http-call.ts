// One HTTP call and its one answer. State: the response until it is answered or aborted, the body,
// and the call's count against its address. Must never touch the response after its answer or
// abort, nor the native request after construction.

import type { HttpResponse, HttpRequest as NativeRequest } from "uWebSockets.js";
import { addressText, networkText } from "./address.ts";
import type { AnnouncedBody, HeadCheck } from "./http-head.ts";
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
import type { HttpReply, HttpRequest, HttpRoute, HttpStream, ListenerSpec } from "./types.ts";

const NO_BODY = new Uint8Array(0);

/** How long a refusal waits for a declared body: many clients send it in a second packet. */
const REST_WAIT_MS = 250;

interface CallTarget {
  readonly method: string;
  readonly path: string;
  readonly params: readonly string[];
  /** Has checked the call. */
  readonly head: HeadCheck;
  /** Names of the headers to copy, lower case. */
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
  /** Set when the answer is a stream. */
  #stream: StreamBody | undefined;
  #remoteAddress: string | undefined;
  /** Whether `requested` was called for the connection. */
  #isReported = false;
  #release: (() => void) | undefined;
  #isBodyOver = false;
  /** A refusal that waits for the rest of the body. */
  #refusal: { readonly reply: HttpReply; readonly timer: NodeJS.Timeout } | undefined;

  constructor(res: HttpResponse, req: NativeRequest, target: CallTarget) {
    this.method = target.method;
    this.path = target.path;
    this.params = target.params;
    this.query = req.getQuery() ?? ""; // undefined without a "?", against its type
    const headers: Record<string, string> = {};
    for (const name of target.headerNames) headers[name] = target.head.value(name);
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
    this.release();
    this.#stream?.aborted();
  }

  /** The last byte of the body arrived. Call it in the native callback. */
  bodyEnded(): void {
    this.#isBodyOver = true;
    this.#finishRefusal();
  }

  /**
   * Counts the call against its address until `release` or its answer. False: the address is at its
   * limit, and the connection was closed.
   */
  hold(): boolean {
    const res = this.#res;
    if (res === undefined || this.#reserve(res)) return true;
    this.#res = undefined;
    res.close();
    return false;
  }

  /** Ends `hold`. Safe to call again. */
  release(): void {
    this.#release?.();
    this.#release = undefined;
  }

  /** The refusal by `check`, if any; a bare 500 when it throws against its contract. */
  admit(check: HttpRoute["admit"]): HttpReply | undefined | Promise<HttpReply | undefined> {
    if (check === undefined) return undefined;
    try {
      const verdict = check(this);
      if (!(verdict instanceof Promise)) return verdict;
      return verdict.catch((error: unknown) => this.#reportBug(error));
    } catch (error) {
      return this.#reportBug(error);
    }
  }

  /**
   * Answers and closes the connection; `rest` is the announced body. The answer waits shortly for
   * the rest of a declared body that is not large. If it does not end by then, the connection stays
   * open until the peer (which gets `connection: close`) or uWebSockets.js after 12 s closes it: a
   * close with unread bytes would reset the connection, and many clients would lose the reply. For
   * a chunked body uWebSockets.js would wait without a limit, so that connection is closed at once.
   * `bodyEnded` must be called for a declared body.
   */
  refuse(reply: HttpReply, rest: AnnouncedBody): void {
    const res = this.#res;
    if (res === undefined) return;
    if (this.#isBodyOver || rest === "none" || rest === "chunked")
      return this.#answerAndClose(res, reply);
    if (rest === "large") return this.#answerAndCloseLater(res, reply);
    if (!this.#reserve(res)) return this.#answerAndClose(res, reply);
    const timer = setTimeout(() => this.#finishRefusal(), REST_WAIT_MS);
    this.#refusal = { reply, timer };
  }

  /** As `refuse`, with the reply that `reply` makes for the call. */
  refuseWith(reply: (request: HttpRequest) => HttpReply, rest: AnnouncedBody): void {
    try {
      this.refuse(reply(this), rest);
    } catch (error) {
      this.refuse(this.#reportBug(error), rest);
    }
  }

  /**
   * Runs the handler and answers, at once or when its promise settles; an error becomes a bare 500.
   * Call it in a native callback only, where the socket is corked.
   */
  run(handle: (request: HttpRequest) => Outcome | Promise<Outcome>, write = writeReply): void {
    try {
      const outcome = handle(this);
      if (outcome instanceof Promise)
        outcome.then(
          (reply) => this.#answerLater(reply, write),
          (error) => this.#fail(error, write),
        );
      else this.#answer(outcome, write);
    } catch (error) {
      this.#fail(error, write);
    }
  }

  /** As `run`, from anywhere else. */
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
    this.release();
    const { reply } = refusal;
    if (this.#isBodyOver) this.#answerAndClose(res, reply);
    else this.#answerAndCloseLater(res, reply);
  }

  #answerAndCloseLater(res: HttpResponse, reply: HttpReply): void {
    this.release();
    const isBare = reply.status === 204 || this.method === "HEAD";
    if (isBare || !this.#limits.closesLater(this.#report(res)))
      return this.#answerAndClose(res, reply);
    const closing = withHeader(reply, "connection", "close");
    res.cork(() => this.#answer(closing, writeReply));
  }

  #answerAndClose(res: HttpResponse, reply: HttpReply): void {
    const write = this.method === "HEAD" ? writeReplyHead : writeReplyAndClose;
    res.cork(() => this.#answer(reply, write));
  }

  #answerLater(reply: Outcome, write: WriteReply): void {
    if (this.#res === undefined) dismiss(reply);
    else this.#res.cork(() => this.#answer(reply, write));
  }

  #answer(reply: Outcome, write: WriteReply): void {
    const res = this.#res;
    if (res === undefined) return dismiss(reply);
    this.#res = undefined;
    this.release();
    try {
      if ("opened" in reply) this.#open(reply, res);
      else write(res, reply);
    } catch (error) {
      this.#onError(error, `${this.method} ${this.path}`);
      res.close(); // partly written
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
    const reply = this.#reportBug(error);
    this.#res?.cork(() => this.#answer(reply, write));
  }

  #reportBug(error: unknown): HttpReply {
    this.#onError(error, `${this.method} ${this.path}`);
    return BARE_500;
  }

  /** Counts the call against its address. False: the address is at its limit. */
  #reserve(res: HttpResponse): boolean {
    this.#release ??= this.#limits.held(this.#report(res));
    return this.#release !== undefined;
  }

  /** Frees the slot of a connection without a request; returns the connection's network. */
  #report(res: HttpResponse): string {
    const network = networkText(res.getRemoteAddress());
    if (!this.#isReported) this.#limits.requested(network);
    this.#isReported = true;
    return network;
  }
}

/** Drops an answer to a peer that is gone. */
function dismiss(reply: Outcome): void {
  if ("opened" in reply) reply.closed();
}
