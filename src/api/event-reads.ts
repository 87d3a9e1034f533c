// Calls that read the event feed in pages, follow it with server-sent events, and turn it on or
// off. State: the open feeds.

import { type Static, Type } from "typebox";
import { encodeCursor } from "../broker/event-cursor.ts";
import type { EventPosition } from "../broker/event-ports.ts";
import {
  type EventFilter,
  type Events,
  type FeedEvent,
  type FeedPage,
  typesError,
} from "../broker/events.ts";
import { channelKey, GROUP_CHANNEL, PERSON_CHANNEL } from "../broker/model.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { queryReader } from "./body.ts";
import { EDGE_ERRORS, edgeReply, errorReply } from "./errors.ts";
import { EVENT_STREAM_HEADERS, EventFeed } from "./event-feed.ts";
import { EVENT_EXAMPLE, eventBody } from "./event-schemas.ts";
import { FeedWheel } from "./feed-wheel.ts";
import { JSON_HEADERS, jsonReply } from "./reply.ts";
import { type ApiRoute, postRoute, type RouteReply } from "./route.ts";

export interface EventRoutePorts {
  readonly events: Events;
  /**
   * Interval in milliseconds between two visits to a feed (see `FeedWheel`). The default is 15,000.
   */
  readonly keepAliveMs?: number;
}

const MAX_LIMIT = 1000;
const LIMIT = 100;
const MAX_WAIT_S = 60;
/** Maximum time that one read by a follower waits for events. */
const FOLLOW_MS = 30_000;

const eventsQuery = Type.Object({
  after: Type.Optional(
    Type.String({
      description:
        "Position after which events are read: a cursor, `now`, `oldest`, or a time (RFC 3339 or Unix milliseconds). Absent means `oldest`",
    }),
  ),
  types: Type.Optional(
    Type.String({
      description:
        "Event types, separated by commas. A name with `*` at the end selects all types that begin with the text before it. A plain `*` does not select `session.opened`, `session.closed` or `command.sent`; select them by their full names, or with `session.*` or `command.*`. Absent means all types except these three",
    }),
  ),
  channel: Type.Optional(
    Type.String({
      description:
        "Only events of this channel: `2:<group>`, `1:<uid>@<uid>` with the users in any order, or `1:<uid>` for a user's channel record",
    }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_LIMIT,
      description: `Maximum number of events. Absent means ${LIMIT}`,
    }),
  ),
  wait: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_WAIT_S,
      description: "Seconds to wait for the first event. Absent means 0",
    }),
  ),
});

const EXAMPLE_CURSOR = "eEAAAAAAAAQABVPl-AAAA";

const eventsBody = Type.Object(
  {
    events: Type.Array(eventBody, { description: "Events in the order of the feed" }),
    cursor: Type.String({
      description: "Cursor after the last event, for the `after` parameter of the next call",
    }),
    more: Type.Integer({ description: "1: the next page may already have events" }),
  },
  {
    title: "Events",
    description: "Page of the event feed",
    examples: [{ events: [EVENT_EXAMPLE], cursor: EXAMPLE_CURSOR, more: 0 }],
  },
);

const feedBody = Type.Object(
  {
    feed: Type.Enum(["on", "off"], { type: "string", description: "on: the store writes events" }),
  },
  { title: "FeedRequest", description: "State to set", examples: [{ feed: "on" }] },
);

const switchedBody = Type.Object(
  {
    feed: Type.String({ description: "on if the store writes events, otherwise off" }),
    cursor: Type.String({
      description:
        "Cursor after the newest event. If feed is on, every later change has an event after this cursor",
    }),
  },
  {
    title: "Feed",
    description: "State of the event feed",
    examples: [{ feed: "on", cursor: EXAMPLE_CURSOR }],
  },
);

interface EventRequest {
  readonly filter: EventFilter;
  readonly limit: number;
  readonly waitMs: number;
  readonly after: string;
}

export function createEventRoutes(ports: EventRoutePorts): readonly ApiRoute[] {
  const { events } = ports;
  const readQuery = queryReader(eventsQuery);
  const wheel = new FeedWheel(ports.keepAliveMs);

  async function expired(): Promise<HttpReply> {
    const { status, message } = EDGE_ERRORS.cursor_expired;
    const body = { error: message, code: "cursor_expired", status };
    const oldest = await events.oldestCursor();
    return { status, headers: JSON_HEADERS, body: JSON.stringify({ ...body, oldest }) };
  }

  async function page(
    request: HttpRequest,
    start: readonly EventPosition[],
    { filter, limit, waitMs }: EventRequest,
  ): Promise<HttpReply> {
    const aborted = new AbortController();
    request.onAborted(() => aborted.abort());
    const terms = { limit, waitMs, signal: aborted.signal };
    const result = await events.readWithin(start, filter, terms);
    if (result === undefined) return expired();
    const list = result.events.map(({ event }) => eventText(event)).join(",");
    const cursor = encodeCursor(result.positions);
    return jsonReply(`{"events":[${list}],"cursor":"${cursor}","more":${result.more ? 1 : 0}}`);
  }

  /**
   * Returns the reply to HEAD, with the same status and headers as the reply to GET. Does not wait
   * for events.
   */
  async function headReply(
    start: readonly EventPosition[],
    { filter }: EventRequest,
    follows: boolean,
  ): Promise<HttpReply> {
    if ((await events.read(start, filter, 1)) === undefined) return expired();
    return { status: 200, headers: follows ? EVENT_STREAM_HEADERS : JSON_HEADERS, body: "" };
  }

  async function follow(
    start: readonly EventPosition[],
    { filter, limit }: EventRequest,
    mayStay: () => Promise<boolean>,
  ): Promise<RouteReply> {
    const first = await events.read(start, filter, limit);
    if (first === undefined) return expired();
    const feed = new EventFeed({
      headers: EVENT_STREAM_HEADERS,
      onClosed: () => wheel.delete(feed),
    });
    feed.attach(new Follower(events, feed, { filter, limit, first }));
    wheel.add(feed, mayStay);
    return feed;
  }

  const reads: ApiRoute = {
    method: "GET",
    path: "/events",
    operation: "readEvents",
    access: ["events:read"],
    headers: ["accept", "last-event-id"],
    tag: "events",
    summary: "Returns events of the feed, or follows it with server-sent events",
    body: undefined,
    query: eventsQuery,
    success: {
      description: "Events in order, and the cursor after them",
      body: eventsBody,
      eventStream: "One server-sent event for each event. Its id is the cursor after the event",
    },
    errors: ["bad_cursor", "bad_id"],
    edgeErrors: ["events_off", "cursor_expired"],
    async run(request, guard) {
      const query = readQuery(request);
      if ("refusal" in query) return query.refusal;
      const read = requestOf(query.value, request);
      if ("refusal" in read) return read.refusal;
      if (!(await events.isOn())) return edgeReply("events_off");
      const start = await events.positionsAt(read.after);
      if (start === undefined) return errorReply("bad_cursor", { message: BAD_CURSOR });
      const follows = request.headers.accept?.includes("text/event-stream") === true;
      if (request.method === "HEAD") return headReply(start, read, follows);
      if (!follows) return page(request, start, read);
      const mayStay = async () => {
        const refusal = await guard(request, ["events:read"]);
        return refusal === undefined && (await events.isOn());
      };
      return follow(start, read, () => mayStay().catch(() => false));
    },
  };
  const change = postRoute({
    path: "/events/feed",
    operation: "setEventFeed",
    access: ["system:write"],
    tag: "events",
    summary: "Turns the event feed on or off",
    body: feedBody,
    success: { description: "The feed and its cursor", body: switchedBody },
    errors: ["unavailable", "too_late"],
    async handle({ feed }) {
      const cursor = await events.switch(feed === "on");
      return jsonReply(JSON.stringify({ feed, cursor }));
    },
  });
  return [reads, change];
}

/** Writes events to one follower. Reads the next page when the current page has been written. */
class Follower {
  readonly #events: Events;
  readonly #feed: EventFeed;
  readonly #terms: { readonly filter: EventFilter; readonly limit: number };
  readonly #stopped = new AbortController();
  #page: FeedPage;
  #next = 0;
  #isReading = false;

  constructor(
    events: Events,
    feed: EventFeed,
    {
      first,
      ...terms
    }: { readonly filter: EventFilter; readonly limit: number; readonly first: FeedPage },
  ) {
    this.#events = events;
    this.#feed = feed;
    this.#terms = terms;
    this.#page = first;
    feed.write(": the event feed\n\n"); // the feed calls `resume` when it is open
  }

  resume(): void {
    if (!this.#isReading) void this.#run();
  }

  stop(): void {
    this.#stopped.abort();
  }

  async #run(): Promise<void> {
    this.#isReading = true;
    const { signal } = this.#stopped;
    try {
      while (!signal.aborted) {
        if (!this.#writePage()) return;
        const terms = { limit: this.#terms.limit, waitMs: FOLLOW_MS, signal };
        const page = await this.#events.readWithin(this.#page.positions, this.#terms.filter, terms);
        if (page === undefined) break; // the next request gets `cursor_expired`
        if (page.events.length === 0 && this.#events.isClosed) break;
        this.#page = page;
        this.#next = 0;
      }
      this.#feed.end();
    } catch {
      this.#feed.end(); // the follower connects again and gets the error
    } finally {
      this.#isReading = false;
    }
  }

  /** Writes the remaining events of the page. Returns false if a write pauses the feed. */
  #writePage(): boolean {
    const { events } = this.#page;
    for (let next = events[this.#next]; next !== undefined; next = events[this.#next]) {
      this.#next += 1;
      const { event, positions } = next;
      const text = `id: ${encodeCursor(positions)}\nevent: ${event.type}\ndata: ${eventText(event)}\n\n`;
      if (!this.#feed.write(text)) return false;
    }
    return true;
  }
}

const BAD_CURSOR =
  "`after` must be now, oldest, a time (RFC 3339 or Unix milliseconds), or a cursor of this feed.";

function requestOf(
  query: Static<typeof eventsQuery>,
  { headers }: HttpRequest,
): EventRequest | { readonly refusal: HttpReply } {
  const { types = "", channel, limit = LIMIT, wait = 0 } = query;
  const names = types.split(",").filter((name) => name !== "");
  const unknown = typesError(names);
  if (unknown !== undefined) return { refusal: errorReply("bad_request", { message: unknown }) };
  const key = channel === undefined || channel === "" ? undefined : keyOf(channel);
  if (key === "")
    return {
      refusal: errorReply("bad_id", {
        message:
          "`channel` must be 2:<group>, 1:<uid>@<uid>, or 1:<uid> for a user's channel record.",
      }),
    };
  return {
    filter: { types: names, key },
    ...{ limit, waitMs: wait * 1000 },
    after: headers["last-event-id"] || query.after || "oldest",
  };
}

/** Returns the key of a channel, or "" if the text does not name a channel. */
function keyOf(text: string): string {
  const id = text.slice(2);
  if (id === "") return "";
  if (text.startsWith("2:")) return channelKey({ id, type: GROUP_CHANNEL }, "");
  const [first = "", second, ...rest] = id.split("@");
  if (!text.startsWith("1:") || first === "" || second === "" || rest.length > 0) return "";
  if (second === undefined) return text; // the key of the events about a user's own channel record
  return channelKey({ id: first, type: PERSON_CHANNEL }, second);
}

function eventText({ id, type, timestampMs, data }: FeedEvent): string {
  return JSON.stringify({ id, type, timestamp: new Date(timestampMs).toISOString(), data });
}
