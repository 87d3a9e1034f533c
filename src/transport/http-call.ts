// One HTTP call and its reply. Must never use the response after the reply or an abort.

import { networkOf } from "../lib/network.ts";
import { addressText, networkText } from "./address.ts";
import {
  type ClientAddresses,
  FORWARDED_FOR,
  FORWARDED_PROTO,
  hasProxyHeader,
} from "./client-addresses.ts";
import type { Driver, DriverResponse } from "./driver.ts";
import type { AnnouncedBody, HeadCheck, HeaderSelection } from "./http-head.ts";
import {
  BARE_500,
  type WriteReply,
  withHeader,
  writeHeadReply,
  writeHeadReplyAndClose,
  writeLastHeadReply,
  writeReply,
  writeReplyAndClose,
} from "./http-reply.ts";
import { StreamBody } from "./http-stream.ts";
import type { SocketLimits } from "./socket-limits.ts";
import type { TurnEnd } from "./turn-end.ts";
import type { HttpReply, HttpRequest, HttpRoute, HttpStream, ListenerSpec } from "./types.ts";

const NO_BODY = new Uint8Array(0);

/**
 * Time for which a refusal waits for the body, because many clients send the body in a second
 * packet.
 */
const REST_WAIT_MS = 250;

/**
 * Fraction of an address's limit that may be used by connections that stay open after a HEAD
 * request.
 */
const HEAD_SHARE = 1 / 2;

interface CallTarget {
  readonly method: string;
  readonly path: string;
  readonly params: readonly string[];
  readonly head: HeadCheck;
  readonly headers: HeaderSelection;
  readonly onError: ListenerSpec["onError"];
  readonly turnEnd: TurnEnd;
  readonly limits: SocketLimits;
  readonly addresses: ClientAddresses | undefined;
  readonly driver: Driver;
  readonly isTls: boolean;
}

type Outcome = HttpReply | HttpStream;

export class HttpCall implements HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly params: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  body: Uint8Array = NO_BODY;
  readonly #onError: ListenerSpec["onError"];
  readonly #turnEnd: TurnEnd;
  readonly #limits: SocketLimits;
  #res: DriverResponse | undefined;
  #stream: StreamBody | undefined;
  readonly #addresses: ClientAddresses | undefined;
  #forwardedFor = "";
  #forwardedProto = "";
  readonly #isTls: boolean;
  #onAborted: (() => void) | undefined;
  #remoteAddress: string | undefined;
  /**
   * `due` or `deferred` if the connection sent a PROXY header. The reply is then written in a later
   * turn and closes the connection, because uWebSockets.js would accept another PROXY header, with
   * a different address, before the next request.
   */
  #isolation: "none" | "due" | "deferred" = "none";
  #keepAlive: string | undefined;
  readonly #isLast: boolean;
  /**
   * True if the request was reported to `SocketLimits`, or if the driver reports first requests
   * itself.
   */
  #isReported: boolean;
  #release: (() => void) | undefined;
  #isBodyOver = false;
  #refusal: { readonly reply: HttpReply; readonly timer: NodeJS.Timeout } | undefined;

  constructor(res: DriverResponse, target: CallTarget) {
    this.method = target.method;
    this.path = target.path;
    this.params = target.params;
    this.query = target.head.query;
    this.headers = target.head.present(target.headers);
    this.#onError = target.onError;
    this.#turnEnd = target.turnEnd;
    this.#limits = target.limits;
    this.#addresses = target.addresses;
    this.#keepAlive = target.driver.keepAlive;
    this.#res = res;
    this.#isTls = target.isTls;
    this.#isLast = target.head.isLast;
    if (target.addresses !== undefined) {
      this.#forwardedFor = target.head.value(FORWARDED_FOR);
      this.#forwardedProto = target.head.value(FORWARDED_PROTO);
      if (hasProxyHeader(res)) this.#isolation = "due";
    }
    this.#isReported = target.driver.reportsFirstRequests;
    if (target.limits.isWatching) this.#report(res);
  }

  get remoteAddress(): string {
    if (this.#remoteAddress !== undefined) return this.#remoteAddress;
    if (this.#res === undefined) return "";
    this.#remoteAddress =
      this.#addresses?.of(this.#res, this.#forwardedFor) ??
      addressText(this.#res.getRemoteAddress());
    return this.#remoteAddress;
  }

  get scheme(): "http" | "https" {
    if (this.#isTls) return "https";
    const isSecure =
      this.#res !== undefined && this.#addresses?.isSecure(this.#res, this.#forwardedProto);
    return isSecure ? "https" : "http";
  }

  get isProxied(): boolean {
    return this.#res !== undefined && hasProxyHeader(this.#res);
  }

  abort(): void {
    this.#res = undefined;
    clearTimeout(this.#refusal?.timer);
    this.release();
    this.#stream?.aborted();
    this.#onAborted?.();
  }

  onAborted(step: () => void): void {
    if (this.#res === undefined) step();
    else this.#onAborted = step;
  }

  /** Records the end of the body. Must be called in the driver's callback for the last byte. */
  bodyEnded(): void {
    this.#isBodyOver = true;
    this.#finishRefusal();
  }

  hold(): boolean {
    const res = this.#res;
    if (res === undefined || this.#reserve(res)) return true;
    this.#res = undefined;
    res.close();
    return false;
  }

  release(): void {
    this.#release?.();
    this.#release = undefined;
  }

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
   * Sends the reply and closes the connection. A close with unread bytes would reset the
   * connection, and many clients would lose the reply. The reply therefore waits for a small
   * declared body, for at most `REST_WAIT_MS`. If the body is large or late, the connection stays
   * open after the reply until the peer closes it, or until the driver closes it after at most 12
   * s. The connection is closed at once if the address's limit does not allow it to stay open, if
   * the reply has no body, or if the request's body is absent or chunked. `bodyEnded` must be
   * called for a declared body.
   */
  refuse(reply: HttpReply, announced: AnnouncedBody): void {
    const res = this.#res;
    if (res === undefined) return;
    if (this.#isBodyOver || announced === "none" || announced === "chunked")
      return this.#answerAndClose(res, reply);
    if (announced === "large") return this.#answerAndCloseLater(res, reply);
    if (!this.#reserve(res)) return this.#answerAndClose(res, reply);
    const timer = setTimeout(() => this.#finishRefusal(), REST_WAIT_MS);
    this.#refusal = { reply, timer };
  }

  refuseWith(reply: (request: HttpRequest) => HttpReply, announced: AnnouncedBody): void {
    try {
      this.refuse(reply(this), announced);
    } catch (error) {
      this.refuse(this.#reportBug(error), announced);
    }
  }

  /**
   * Runs a handler. Must be called in one of the driver's callbacks, where the socket is corked.
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

  /** Runs a handler outside of the driver's callbacks. */
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

  #answerAndCloseLater(res: DriverResponse, reply: HttpReply): void {
    this.release();
    const isBare = reply.status === 204 || this.method === "HEAD";
    this.#report(res);
    if (isBare || !this.#limits.allowLateClose(networkOf(this.remoteAddress)))
      return this.#answerAndClose(res, reply);
    this.#keepAlive = undefined;
    const closing = withHeader(reply, "connection", "close");
    res.cork(() => this.#answer(closing, writeReply));
  }

  #answerAndClose(res: DriverResponse, reply: HttpReply): void {
    res.cork(() => this.#answer(reply, writeReplyAndClose));
  }

  #answerLater(reply: Outcome, write: WriteReply): void {
    if (this.#res === undefined) dismiss(reply);
    else this.#res.cork(() => this.#answer(reply, write));
  }

  #answer(reply: Outcome, write: WriteReply): void {
    const res = this.#res;
    if (res === undefined) return dismiss(reply);
    if (this.#isolation === "due") {
      this.#isolation = "deferred";
      setImmediate(() => this.#answerLater(reply, write));
      return;
    }
    const writeHead = this.method === "HEAD" ? this.#headWriter(res, write) : undefined;
    this.#res = undefined;
    this.release();
    try {
      if (writeHead !== undefined) {
        dismiss(reply);
        writeHead(res, reply, this.#keepAlive);
      } else if ("opened" in reply) this.#open(reply, res);
      else if (this.#closesConnection && write === writeReply) writeReplyAndClose(res, reply);
      else write(res, reply, this.#keepAlive);
    } catch (error) {
      this.#onError(error, `Could not handle ${this.method} ${this.path}`);
      res.close();
    }
  }

  /**
   * Returns the function that writes a reply to HEAD. If the server would close the connection
   * after a GET, the reply asks the client to close it, because uWebSockets.js cannot close a
   * connection after a reply without a Content-Length. After a PROXY header, or if `allowLateClose`
   * returns false, the server writes a Content-Length of 0 and closes the connection.
   */
  #headWriter(res: DriverResponse, write: WriteReply): typeof writeHeadReply {
    if (this.#isolation !== "none") return writeHeadReplyAndClose;
    if (write === writeReply && !this.#isLast) return writeHeadReply;
    this.#report(res);
    const mayStay = this.#limits.allowLateClose(networkOf(this.remoteAddress), HEAD_SHARE);
    return mayStay ? writeLastHeadReply : writeHeadReplyAndClose;
  }

  get #closesConnection(): boolean {
    return this.#isolation !== "none" || this.#isLast;
  }

  #open(stream: HttpStream, res: DriverResponse): void {
    this.#stream = new StreamBody(stream, res, {
      turnEnd: this.#turnEnd,
      closesConnection: this.#closesConnection,
      onError: this.#onError,
      failure: `Could not handle ${this.method} ${this.path}`,
    });
    this.#stream.open();
  }

  #fail(error: unknown, write: WriteReply): void {
    const reply = this.#reportBug(error);
    this.#res?.cork(() => this.#answer(reply, write));
  }

  #reportBug(error: unknown): HttpReply {
    this.#onError(error, `Could not handle ${this.method} ${this.path}`);
    return BARE_500;
  }

  #reserve(res: DriverResponse): boolean {
    this.#report(res);
    this.#release ??= this.#limits.hold(networkOf(this.remoteAddress));
    return this.#release !== undefined;
  }

  #report(res: DriverResponse): void {
    if (this.#isReported) return;
    this.#isReported = true;
    this.#limits.requested(networkText(res.getRemoteAddress()));
  }
}

function dismiss(reply: Outcome): void {
  if ("opened" in reply) reply.closed();
}
