// Keeps a client connected: opens links one after the other until it is told to stop or the server says never again.
// State: the status, the link, the session to continue, the number of failed tries. It knows nothing of messages.

import { CLOSE_REASONS } from "../broker/errors.ts";
import type { ClientEvents, Status } from "./api.ts";
import { pauseMs, verdict } from "./backoff.ts";
import { asJindouError, endedBy, JindouError } from "./errors.ts";
import {
  type Greeting,
  type GreetingParts,
  greeting,
  MAX_FRAME_BYTES,
  MAX_RESUME_CHANNELS,
} from "./greeting.ts";
import { type Connack, Link, type LinkEnd, type LinkParts } from "./link.ts";
import { randomName } from "./names.ts";
import type { Settings } from "./options.ts";
import { drop, openSocket } from "./socket.ts";

export interface ConnectorParts {
  readonly settings: Settings;
  /** What to resume, at most `limit` channels, most recently used first. */
  resume(limit: number): GreetingParts["points"];
  /** A session is open. */
  opened(link: Link, connack: Connack): void;
  readonly pushed: LinkParts["pushed"];
  /** The open session is gone. */
  lost(): void;
  /** The client is closed for good, with what everything that waits is to be rejected with. */
  closed(error: JindouError): void;
  emit<E extends "status" | "kicked" | "error">(
    event: E,
    value: ClientEvents[E],
  ): void;
}

/** A session that held for so long counts as a success: the next pause is a short one again. */
const STABLE_MS = 2000;
/** How a server ends a connection whose frame is too large for it. */
const UNEXPLAINED: readonly number[] = [1006, 1009];

/** A connection that was tried. */
interface Tried extends Greeting {
  readonly token: string;
}

export class Connector {
  readonly #parts: ConnectorParts;
  #status: Status = "connecting";
  #link: Link | undefined;
  #attempt = 0;
  /** Of a clock that nobody sets. */
  #openedAt = 0;
  /** What this server takes, as far as it is known. */
  #resumeLimit = MAX_RESUME_CHANNELS;
  #maxFrameBytes = MAX_FRAME_BYTES;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #round = 0;
  /** Which session to continue. Until the server has named it, a name of our own: a try whose CONNACK is lost is no second login. */
  #session = randomName();
  /** The token that it was opened with, or that the first CONNECT with its name brought: the server may have opened it. */
  #sessionToken: string | undefined;

  constructor(parts: ConnectorParts) {
    this.#parts = parts;
  }

  get status(): Status {
    return this.#status;
  }

  /** Begins to connect, or does so now instead of at the end of a pause. What is connected is looked after. */
  connectNow(): void {
    if (this.#status === "closed") return;
    if (this.#link !== undefined) return this.#link.probe();
    clearTimeout(this.#timer);
    this.#become("connecting");
    this.#round += 1;
    void this.#connect(this.#round);
  }

  /** Ends everything; resolves when the server knows, or could not be told. */
  async close(): Promise<void> {
    const link = this.#link;
    this.#finish(new JindouError("closed"));
    await link?.goodbye();
  }

  /** `round` tells this try from one that was given up. */
  async #connect(round: number): Promise<void> {
    const { settings } = this.#parts;
    const isOld = () => round !== this.#round || this.#status === "closed";
    try {
      const token = await settings.token();
      if (isOld()) return;
      const points = this.#parts.resume(this.#resumeLimit);
      const maxFrameBytes = this.#maxFrameBytes;
      const session = this.#session;
      const parts = { token, session, points, maxFrameBytes };
      const hello = greeting(settings, parts);
      const socket = await openSocket(settings.url, settings.webSocket);
      if (isOld()) return drop(socket);
      const link: Link = new Link({
        socket,
        uid: settings.uid,
        greeting: hello.frame,
        timeouts: settings.timeouts,
        opened: (connack) => this.#opened(link, connack),
        pushed: this.#parts.pushed,
        ended: (end) => this.#ended(end, { ...hello, token }),
      });
      this.#link = link;
    } catch (error) {
      if (!isOld()) this.#failed(asJindouError(error, "bad_option"));
    }
  }

  /** No connection could even be tried. */
  #failed(error: JindouError): void {
    if (error.retry) this.#again("pause");
    else this.#finish(error);
    this.#parts.emit("error", error);
  }

  #opened(link: Link, connack: Connack): void {
    this.#openedAt = performance.now();
    this.#session = connack.sessionId;
    this.#maxFrameBytes = connack.limits.maxFrameBytes;
    this.#become("online");
    if (this.#link === link) this.#parts.opened(link, connack); // a handler may have closed it
  }

  #ended(end: LinkEnd, { resumed, frame, token }: Tried): void {
    const wasOpen = this.#status === "online";
    this.#link = undefined;
    if (this.#status === "closed") return;
    if (wasOpen) {
      this.#parts.lost();
      const heldMs = performance.now() - this.#openedAt;
      if (heldMs >= STABLE_MS) this.#attempt = 0;
    } else if (resumed > 0) {
      if (end.error?.code === "too_large") {
        this.#resumeLimit = resumed >> 1; // this server takes fewer channels
        return this.#waitFor(0);
      }
      if (end.isGreeted && UNEXPLAINED.includes(end.code))
        this.#maxFrameBytes = frame.length / 2; // or smaller frames, until it tells
    }
    if (wasOpen || (end.isGreeted && this.#sessionToken === undefined))
      this.#sessionToken = token;
    if (!wasOpen && this.#hasNewToken(end.code, token)) {
      this.#session = randomName(); // a login
      return this.#waitFor(0);
    }
    const next = verdict(end.code);
    const isGoingAway = end.code === CLOSE_REASONS.draining.code; // another node takes it
    const isFailed = !wasOpen && !isGoingAway && next !== "never";
    const error = end.error ?? (isFailed ? noSession(end) : undefined);
    if (error !== undefined) this.#parts.emit("error", error);
    if (next === "never") this.#kicked(end);
    else this.#again(next);
  }

  /** The session ended with its token, and the app has given another one since: what the server asks for. Once for each session. */
  #hasNewToken(code: number, token: string): boolean {
    if (code !== CLOSE_REASONS.token_changed.code) return false;
    const before = this.#sessionToken;
    this.#sessionToken = undefined;
    return before !== undefined && before !== token;
  }

  #kicked(end: LinkEnd): void {
    const kicked = endedBy(end.code);
    this.#finish(end.error ?? new JindouError(kicked.reason, kicked));
    this.#parts.emit("kicked", kicked);
  }

  #again(when: "at_once" | "pause"): void {
    if (this.#status === "closed") return; // a handler closed it
    const atOnce = when === "at_once" && this.#attempt === 0;
    const wait = pauseMs(this.#attempt, this.#parts.settings.reconnect);
    this.#attempt += 1;
    this.#waitFor(atOnce ? 0 : wait);
  }

  #waitFor(ms: number): void {
    this.#timer = setTimeout(() => this.connectNow(), ms);
    this.#become("offline");
  }

  #finish(error: JindouError): void {
    if (this.#status === "closed") return;
    clearTimeout(this.#timer);
    this.#link = undefined;
    this.#parts.closed(error);
    this.#become("closed");
  }

  #become(status: Status): void {
    if (this.#status === status) return;
    this.#status = status;
    this.#parts.emit("status", status);
  }
}

/** A try that came to nothing, and nobody said why. */
function noSession({ code }: LinkEnd): JindouError {
  const message = `No session: the connection ended with code ${code}`;
  return new JindouError("connection_lost", { message });
}
