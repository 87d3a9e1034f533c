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
    this.#letGo();
    this.#stream?.aborted();
  }

  /** From now on the call counts against its address, until it is answered. False: that is one too many, and the connection is closed. */
  hold(): boolean {
    const res = this.#res;
    if (res === undefined || this.#release !== undefined) return true;
    this.#release = this.#limits.held(this.#report(res));
    if (this.#release !== undefined) return true;
    this.#res = undefined;
    res.close();
    return false;
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
   * Answers and has the connection closed; `rest` is what may still come of the request. A body of declared length is left to the peer, which
   * the header tells, and to uWebSockets.js 12 s later: closing at once would reset the connection, and many clients would lose the reply. With
   * a chunked body the library would wait for as long as bytes come, so that connection is closed at once.
   */
  refuse(reply: HttpReply, rest: AnnouncedBody): void {
    const res = this.#res;
    if (res === undefined) return;
    const isBare = reply.status === 204 || this.method === "HEAD";
    const mayLinger = rest === "declared" || (isBare && rest === "none");
    const lingers = mayLinger && this.#limits.lingers(this.#report(res));
    const write = this.method === "HEAD" ? writeReplyHead : writeReply;
    res.cork(() =>
      lingers
        ? this.#answer(withHeader(reply, "connection", "close"), write)
        : this.#answer(reply, writeReplyAndClose),
    );
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
    this.#letGo();
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

  #letGo(): void {
    this.#release?.();
    this.#release = undefined;
  }

  /** Gives back the slot that the connection had while nothing was known of it. Answers with its network. */
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
