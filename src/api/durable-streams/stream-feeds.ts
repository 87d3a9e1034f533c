// Replies that follow a log with server-sent events [PROTOCOL.md 5.8]. Each batch of frames is one
// event `data`, directly followed by an event `control`. While the connection of a feed is full, its
// cursor is paused.

import type { LogBatch, LogCursor, LogCursors, LogSink } from "../../broker/log-cursors.ts";
import { formatOffset, type LogName, type LogOffset } from "../../broker/log-frame.ts";
import type { HttpBody, HttpRequest, HttpStream } from "../../transport/types.ts";
import { FeedWheel, type VisitedFeed } from "../feed-wheel.ts";
import { COMMENT } from "../feeds.ts";
import type { Admission, StreamCaller } from "./admission.ts";
import { bodyOf, isTextLog } from "./records.ts";
import { STREAM_REPLY_HEADERS } from "./replies.ts";

/** Number of visits after which a feed ends, about a minute. Its reader reconnects. */
const MAX_VISITS = 4;

interface FeedTarget {
  readonly name: LogName;
  /** `undefined` for the tail. */
  readonly from: LogOffset | undefined;
  readonly head: { readonly contentType: string };
  /** Value of `streamCursor`. */
  readonly cursor: string;
  readonly caller: StreamCaller;
}

export class StreamFeeds {
  readonly #wheel: FeedWheel;
  readonly #cursors: Pick<LogCursors, "open">;
  readonly #admission: Pick<Admission, "stillAdmits">;
  readonly #dataText = createDataText();

  /** `keepAliveMs` is the interval between two visits to a feed, `undefined` for the default. */
  constructor(
    cursors: Pick<LogCursors, "open">,
    admission: Pick<Admission, "stillAdmits">,
    keepAliveMs: number | undefined,
  ) {
    this.#cursors = cursors;
    this.#admission = admission;
    this.#wheel = new FeedWheel(keepAliveMs);
  }

  async open(request: HttpRequest, target: FeedTarget): Promise<HttpStream> {
    const feed = new StreamFeed(target, this.#dataText, () => this.#wheel.delete(feed));
    const { name, from } = target;
    feed.attach(await this.#cursors.open({ name, from }, feed));
    this.#wheel.add(feed, () => this.#admission.stillAdmits(request));
    return feed;
  }
}

type DataText = (batch: LogBatch, contentType: string) => string;

class StreamFeed implements HttpStream, LogSink, VisitedFeed {
  readonly status = 200;
  readonly headers: Readonly<Record<string, string>>;
  readonly filler = COMMENT;
  readonly #contentType: string;
  readonly #streamCursor: string;
  readonly #dataText: DataText;
  readonly #onClosed: () => void;
  #cursor: LogCursor | undefined;
  #body: HttpBody | undefined;
  #pendingText = "";
  #isPaused = false;
  #isOver = false;
  #visits = 0;

  constructor({ head, cursor, caller }: FeedTarget, dataText: DataText, onClosed: () => void) {
    this.#contentType = head.contentType;
    this.#streamCursor = cursor;
    this.#dataText = dataText;
    this.#onClosed = onClosed;
    this.headers = headersOf(head.contentType, caller);
  }

  /** Sets the cursor. Must be called before the transport calls `opened`. */
  attach(cursor: LogCursor): void {
    this.#cursor = cursor;
  }

  // --- VisitedFeed -------------------------------------------------------------------------------

  keepAlive(): void {
    this.#visits += 1;
    if (this.#visits >= MAX_VISITS) this.end();
    else if (!this.#isPaused) this.#body?.write(COMMENT);
  }

  end(): void {
    this.#cursor?.stop();
    this.ended();
  }

  // --- LogSink -----------------------------------------------------------------------------------

  push(batch: LogBatch): boolean {
    const data = batch.pieces.length === 0 ? "" : this.#dataText(batch, this.#contentType);
    const text = data + this.#controlText(batch);
    if (this.#body === undefined) {
      this.#pendingText += text;
      this.#isPaused = true;
    } else this.#isPaused = !this.#body.write(text);
    return !this.#isPaused;
  }

  ended(): void {
    this.#isOver = true;
    this.#body?.end();
  }

  // --- HttpStream --------------------------------------------------------------------------------

  opened(body: HttpBody): void {
    this.#body = body;
    if (this.#pendingText !== "") body.write(this.#pendingText);
    this.#pendingText = "";
    if (this.#isOver) body.end();
    else this.#resume();
  }

  writable(): void {
    this.#resume();
  }

  closed(): void {
    this.#cursor?.stop();
    this.#onClosed();
  }

  // --- Helpers -----------------------------------------------------------------------------------

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#cursor?.resume();
  }

  #controlText({ next, isUpToDate, closed }: LogBatch): string {
    const control = {
      streamNextOffset: formatOffset(next),
      streamCursor: closed === undefined ? this.#streamCursor : undefined,
      upToDate: isUpToDate || undefined,
      streamClosed: closed === undefined ? undefined : true,
    };
    return `event: control\ndata:${JSON.stringify(control)}\n\n`;
  }
}

function headersOf(contentType: string, caller: StreamCaller): Readonly<Record<string, string>> {
  return {
    ...STREAM_REPLY_HEADERS,
    "content-type": "text/event-stream",
    "cache-control": caller.kind === "anonymous" ? "no-cache" : "private, no-cache",
    "x-accel-buffering": "no", // otherwise nginx buffers the events
    ...(isTextLog(contentType) ? {} : { "stream-sse-data-encoding": "base64" }),
  };
}

/** Returns a function that caches its last text, because all live readers are sent the same frame. */
function createDataText(): DataText {
  let lastPiece: Uint8Array | undefined;
  let lastType = "";
  let lastText = "";
  return ({ pieces }, contentType) => {
    const [piece] = pieces;
    if (pieces.length !== 1 || piece === undefined) return dataText(pieces, contentType);
    if (piece !== lastPiece || contentType !== lastType) {
      lastPiece = piece;
      lastType = contentType;
      lastText = dataText(pieces, contentType);
    }
    return lastText;
  };
}

/** Every line end begins a new line of data, because the data could otherwise forge events. */
function dataText(pieces: readonly Uint8Array[], contentType: string): string {
  const body = Buffer.from(bodyOf(pieces, contentType));
  if (!isTextLog(contentType)) return `event: data\ndata:${body.toString("base64")}\n\n`;
  const text = body.toString();
  return `event: data\ndata:${text.replace(/\r\n|\r|\n/g, "\ndata:")}\n\n`;
}
