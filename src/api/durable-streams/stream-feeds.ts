// Replies that follow a log with server-sent events [PROTOCOL.md 5.8]. Each batch of frames is sent
// as one `data` event (none if it has no records), followed immediately by a `control` event. While
// the send buffer of a connection is full, the cursor of its feed is paused.

import type { CursorEnd } from "../../broker/cursor.ts";
import type { CursorTarget, LogBatch, LogCursors } from "../../broker/log-cursors.ts";
import { formatOffset } from "../../broker/log-frame.ts";
import { deferred } from "../../lib/deferred.ts";
import type { HttpRequest, HttpStream } from "../../transport/types.ts";
import { EventFeed } from "../event-feed.ts";
import { FeedWheel } from "../feed-wheel.ts";
import type { Admission, StreamCaller } from "./admission.ts";
import { bodyOf, isTextLog, recordsInPieces } from "./records.ts";
import { STREAM_REPLY_HEADERS } from "./replies.ts";

/**
 * Number of visits (see `FeedWheel`) after which a feed ends. `MAX_VISITS` visits take about a
 * minute. The reader then reconnects.
 */
const MAX_VISITS = 4;

interface FeedTarget {
  readonly target: CursorTarget;
  readonly head: { readonly contentType: string };
  /** Value of `streamCursor` in `control` events. */
  readonly cursor: string;
  readonly caller: StreamCaller;
}

export class StreamFeeds {
  readonly #wheel: FeedWheel;
  readonly #cursors: Pick<LogCursors, "open">;
  readonly #admission: Pick<Admission, "recheck">;
  readonly #dataText = createDataText();

  /** `keepAliveMs` is the interval between two visits to a feed. `undefined` means the default. */
  constructor(
    cursors: Pick<LogCursors, "open">,
    admission: Pick<Admission, "recheck">,
    keepAliveMs: number | undefined,
  ) {
    this.#cursors = cursors;
    this.#admission = admission;
    this.#wheel = new FeedWheel(keepAliveMs);
  }

  /**
   * Returns the reply after the first read of the log, which does not wait for data. If the cursor
   * has ended without a batch, for example because the offset is lost, returns the reason.
   */
  async open(
    request: HttpRequest,
    { target, head, cursor, caller }: FeedTarget,
  ): Promise<HttpStream | CursorEnd> {
    const { contentType } = head;
    const feed = new EventFeed({
      headers: headersOf(contentType, caller),
      maxVisits: MAX_VISITS,
      onClosed: () => this.#wheel.delete(feed),
    });
    const firstRead = deferred<CursorEnd | "open">();
    const source = await this.#cursors.open(target, {
      push: (batch) => {
        firstRead.resolve("open");
        return feed.write(this.#dataText(batch, contentType) + controlText(batch, cursor));
      },
      ended: (why) => {
        firstRead.resolve(why);
        feed.end();
      },
    });
    feed.attach(source);
    // The transport closes the feed of an aborted request, which stops the source.
    request.onAborted(() => firstRead.resolve("open"));
    const outcome = await firstRead.promise;
    if (outcome !== "open") return outcome;
    this.#wheel.add(feed, async () => (await this.#admission.recheck(request)) === undefined);
    return feed;
  }
}

function controlText({ next, isUpToDate, closed }: LogBatch, streamCursor: string): string {
  const control = {
    streamNextOffset: formatOffset(next),
    streamCursor: closed === undefined ? streamCursor : undefined,
    upToDate: isUpToDate || undefined,
    streamClosed: closed === undefined ? undefined : true,
  };
  return `event: control\ndata:${JSON.stringify(control)}\n\n`;
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

type DataText = (batch: LogBatch, contentType: string) => string;

/**
 * Returns a version of `dataText` that caches its last result, because all live readers are sent
 * the same frame.
 */
function createDataText(): DataText {
  let lastPiece: Uint8Array | undefined;
  let lastType = "";
  let lastText = "";
  return ({ pieces }, contentType) => {
    const [piece] = pieces;
    if (piece === undefined) return "";
    if (pieces.length > 1) return dataText(pieces, contentType);
    if (piece !== lastPiece || contentType !== lastType) {
      lastPiece = piece;
      lastType = contentType;
      lastText = dataText(pieces, contentType);
    }
    return lastText;
  };
}

/**
 * Returns a `data` event. Each line of the data is written after `data:`, because the data could
 * otherwise forge events. A space at the start of a line is doubled, because a reader removes one
 * space.
 */
function dataText(pieces: readonly Uint8Array[], contentType: string): string {
  const records = recordsInPieces(pieces, contentType);
  if (records.length === 0) return ""; // only the start or the end of a channel's stream
  const body = Buffer.from(bodyOf(records, contentType));
  if (!isTextLog(contentType)) return `event: data\ndata:${body.toString("base64")}\n\n`;
  const lines = body.toString().replace(/(^|\r\n|\r|\n)( ?)/g, "\ndata:$2$2");
  return `event: data${lines}\n\n`;
}
