// Rows of the route table for the Durable Streams protocol and for signing stream URLs.

import { type Static, Type } from "typebox";
import type { ChannelLogs } from "../../broker/channel-logs.ts";
import type { Channels } from "../../broker/channels.ts";
import { assertId } from "../../broker/ids.ts";
import type { LogCursors } from "../../broker/log-cursors.ts";
import type { Logs } from "../../broker/logs.ts";
import { MAX_EXPIRY_S, OVERLAP_MS, type SignedUrls } from "../../broker/signed-urls.ts";
import type { HttpRequest } from "../../transport/types.ts";
import { errorReply } from "../errors.ts";
import { OPTIONAL_ID_PATTERN } from "../fields.ts";
import type { PageRule } from "../guard.ts";
import { jsonReply } from "../reply.ts";
import * as replies from "../reply-schemas.ts";
import { type ApiRoute, plainRoute, postRoute, type RouteReply } from "../route.ts";
import { createExplainRefusal } from "../send-refusals.ts";
import { streamQuery, VIEWER_HEADERS } from "../stream-request.ts";
import type { Viewers } from "../viewers.ts";
import { createAdmission, type StreamUse } from "./admission.ts";
import { parseStreamPath, STREAMS_PATH, STREAMS_PREFIX } from "./path.ts";
import { type BeginWork, createReadCalls } from "./read.ts";
import { STREAM_REPLY_HEADERS, STREAM_REQUEST_HEADERS } from "./replies.ts";
import { StreamFeeds } from "./stream-feeds.ts";
import { createWriteCalls } from "./write.ts";

export interface DurableStreamPorts {
  readonly logs: Logs;
  readonly channelLogs: ChannelLogs;
  readonly viewers: Viewers;
  readonly logCursors: Pick<LogCursors, "open">;
  readonly signedUrls: SignedUrls;
  /** Limits the work that is done for the bearers of signed URLs. */
  readonly bearerBudget: { requirePaid(bearer: string): void; begin: BeginWork };
  /** Decides, in protected mode, which pages may call without a credential. */
  readonly admitsPage: PageRule;
  readonly longPollMs: number;
  /**
   * Interval in milliseconds between two visits to a feed (see `FeedWheel`). The default is 15,000.
   */
  readonly keepAliveMs?: number;
}

const { uid, token, device_flag } = streamQuery.properties;
/** Query parameters that carry a client token. */
const viewerQuery = { uid, token, device_flag };

const readQuery = Type.Object({
  path: Type.String({
    description:
      "1 to 8 segments. `__ds` is reserved as the first segment. `channel/{channel_type}/{channel_id}/{client_msg_no}` is the stream of a message. For a personal channel, `channel_id` is the uid of the other user, or both uids, as in `alice@bob`",
  }),
  offset: Type.Optional(
    Type.String({
      description:
        "Offset from which to read: the value of Stream-Next-Offset in an earlier reply, `-1` (the default) for the beginning, or `now` for the end. Required with `live`",
    }),
  ),
  live: Type.Optional(
    Type.Enum(["long-poll", "sse"], {
      type: "string",
      description:
        "Waits for data after the offset: `long-poll` for a single reply, `sse` for a stream of server-sent events",
    }),
  ),
  cursor: Type.Optional(
    Type.String({ description: "Value of Stream-Cursor in the last reply of a live read" }),
  ),
  sig: Type.Optional(
    Type.String({ description: "Signature in a URL that POST /v1/sign returned" }),
  ),
  ...viewerQuery,
});
const { path: pathParameter, sig } = readQuery.properties;
const writeQuery = Type.Object({ path: pathParameter, sig, ...viewerQuery });

const VIEWER_ERRORS = ["not_in_channel", "token_expired", "banned", "rate_limited"] as const;
/** Errors of calls that write to a channel's stream. */
const SENDER_ERRORS = [
  ...VIEWER_ERRORS,
  ...(["channel_disbanded", "channel_banned", "send_banned", "not_subscriber"] as const),
  ...(["stranger_refused", "denylisted", "not_allowlisted", "client_msg_no_reused"] as const),
] as const;

export function createDurableStreamRoutes(
  ports: DurableStreamPorts & { readonly channels: Pick<Channels, "state"> },
): readonly ApiRoute[] {
  const { logs, channelLogs, logCursors: cursors, viewers, bearerBudget } = ports;
  const { longPollMs, keepAliveMs } = ports;
  const requirePaid = (bearer: string) => bearerBudget.requirePaid(bearer);
  const beginWork: BeginWork = (bearer) => bearerBudget.begin(bearer);
  const admission = createAdmission({ ...ports, requirePaid });
  const feeds = new StreamFeeds(cursors, admission, keepAliveMs);
  const explain = createExplainRefusal(ports.channels);
  const write = createWriteCalls({ logs, channelLogs, admission });
  const { read } = createReadCalls({
    ...{ logs, cursors, admission, viewers, feeds, longPollMs },
    beginWork,
    clock: Date.now,
  });
  const shared = {
    path: STREAMS_PATH,
    tag: "streams",
    headers: [...STREAM_REQUEST_HEADERS, ...VIEWER_HEADERS],
    replyHeaders: STREAM_REPLY_HEADERS,
    body: undefined,
  } as const;
  const admitting = (use: StreamUse): Pick<ApiRoute, "access" | "admit" | "alsoAccepts"> => ({
    access: [use === "read" ? "streams:read" : "streams:write"],
    alsoAccepts: use === "delete" ? [] : ["signedUrl", "deviceToken"],
    admit: (request, guard) => admission.admit(request, guard, use),
  });
  const running = (handle: (request: HttpRequest) => Promise<RouteReply>) => ({ run: handle });
  const writing = (handle: (request: HttpRequest) => Promise<RouteReply>) =>
    running(async (request) => {
      const { bearer, kind, uid } = admission.streamOf(request).caller;
      if (bearer !== undefined) beginWork(bearer)(request.body.length);
      else if (kind === "viewer" && uid !== undefined) viewers.beginRead(uid)(request.body.length);
      return handle(request);
    });
  const create = async (request: HttpRequest) => {
    try {
      return await write.create(request);
    } catch (error) {
      const { sent } = admission.streamOf(request);
      if (sent?.isBackend) return explain(error, sent.channel);
      throw error; // a client must not learn which groups exist
    }
  };
  return [
    {
      ...{ ...shared, ...admitting("read"), ...running(read) },
      method: "GET",
      operation: "readDurableStream",
      summary: "Reads a stream of the Durable Streams protocol from an offset, once or live",
      query: readQuery,
      success: {
        description: "Data after the offset, with the stream's content type",
        body: undefined,
        contentType: "application/octet-stream",
        eventStream:
          "`data` and `control` events, until the stream ends or about a minute has passed",
        nothing: "live=long-poll: no data arrived in time, or the stream is closed",
      },
      replies: { 304: "The data has not changed: its ETag matches If-None-Match" },
      errors: ["bad_id", "stream_unknown", ...VIEWER_ERRORS],
      edgeErrors: ["stream_deleted", "offset_lost", "not_found"],
    },
    {
      ...{ ...shared, ...admitting("write"), ...writing(create) },
      method: "PUT",
      operation: "createDurableStream",
      summary: "Creates a stream, or a fork of another stream",
      query: writeQuery,
      success: {
        ...{ description: "The stream already exists with this configuration", body: undefined },
        isEmpty: true,
      },
      replies: { 201: "The stream was created" },
      errors: ["bad_id", "stream_unknown", "disk_full", ...SENDER_ERRORS],
      forbidding: ["channel_not_found"],
      edgeErrors: ["stream_exists", "stream_type", "log_full", "not_found"],
    },
    {
      ...{ ...shared, ...admitting("write"), ...writing(write.append) },
      method: "POST",
      operation: "appendToDurableStream",
      summary: "Appends data to a stream, closes it, or both",
      query: writeQuery,
      success: {
        description: "The producer's data was appended",
        body: undefined,
        isEmpty: true,
        nothing:
          "Data was appended without a producer, the stream was only closed, or the request repeats an earlier one",
      },
      errors: ["bad_id", "stream_unknown", "too_large", "disk_full", ...SENDER_ERRORS],
      edgeErrors: [
        ...(["stream_deleted", "stream_ended", "stream_type", "stream_seq_conflict"] as const),
        ...(["producer_gap", "producer_fenced", "log_full", "not_found"] as const),
      ],
    },
    {
      ...{ ...shared, ...admitting("delete"), ...running(write.remove) },
      method: "DELETE",
      operation: "deleteDurableStream",
      summary: "Deletes a stream. Its forks keep its data",
      query: writeQuery,
      success: {
        ...{ status: 204, description: "The stream was deleted", body: undefined },
        isEmpty: true,
      },
      errors: ["bad_id", "stream_unknown", "disk_full"],
      edgeErrors: ["stream_deleted", "not_found", "method_not_allowed"],
    },
  ];
}

const DAY_S = OVERLAP_MS / 1000;

const signBody = Type.Object(
  {
    path: Type.String({
      maxLength: 8192,
      pattern: `^${STREAMS_PREFIX}`,
      description: "Path of one stream, as in its URL",
    }),
    access: Type.Enum(["read", "write"], {
      type: "string",
      description: "read allows GET and HEAD. write also allows PUT and POST. No URL allows DELETE",
    }),
    expires_in: Type.Integer({
      minimum: 1,
      maximum: MAX_EXPIRY_S,
      description: "Seconds after which the URL is no longer valid",
    }),
    from_uid: Type.Optional(
      Type.String({
        pattern: OPTIONAL_ID_PATTERN,
        description: "User in whose name the bearer of the URL writes to a channel",
      }),
    ),
  },
  {
    title: "SignedUrlRequest",
    description: "Stream to which the URL gives access, and what the bearer of the URL may do",
    examples: [{ path: "/v1/stream/answers/42", access: "read", expires_in: 3600 }],
  },
);

const FROM_UID_REQUIRED = errorReply("bad_request", {
  message: "from_uid is required for a URL that writes to a channel",
  details: [{ path: "from_uid", message: "is required" }],
});

/** Creates the rows of the calls that sign URLs. Only the control plane has these rows. */
export function createSignRoutes(signedUrls: SignedUrls, clock: () => number): readonly ApiRoute[] {
  async function sign(
    { path, access, expires_in: expiresInS, from_uid: fromUid = "" }: Static<typeof signBody>,
    { scheme, headers }: HttpRequest,
  ) {
    const parsed = parseStreamPath(path);
    if ("refusal" in parsed) return parsed.refusal;
    if (fromUid !== "") assertId(fromUid, "from_uid");
    const expiresAtS = Math.floor(clock() / 1000) + expiresInS;
    const { target } = parsed;
    if (target.kind === "channel" && access === "write" && fromUid === "") return FROM_UID_REQUIRED;
    const signature = await signedUrls.sign(target.path, { access, fromUid, expiresAtS });
    const base = `${scheme}://${headers.host ?? ""}`;
    const url = `${base}${target.urlPath}?sig=${signature}`;
    return jsonReply(JSON.stringify({ url, expires_at: expiresAtS }));
  }

  return [
    postRoute({
      path: "/v1/sign",
      operation: "signStreamUrl",
      access: ["streams:write"],
      tag: "streams",
      summary: "Signs a stream's URL, so that its bearer needs no other credential",
      body: signBody,
      success: { description: "The signed URL", body: replies.signedUrlBody },
      errors: ["bad_id"],
      edgeErrors: ["not_found"],
      handle: sign,
    }),
    plainRoute({
      method: "POST",
      path: "/v1/sign/rotate",
      operation: "rotateSigningKey",
      access: ["streams:write"],
      tag: "streams",
      summary: `Creates a new key for signed URLs. URLs that were signed earlier stay valid for at most ${DAY_S} seconds after this call`,
      success: { description: "The new key signs URLs from now on", body: replies.rotatedBody },
      errors: ["unavailable"],
      async handle() {
        const { createdAtMs } = await signedUrls.rotate();
        const earlierUntil = Math.floor((createdAtMs + OVERLAP_MS) / 1000);
        return jsonReply(JSON.stringify({ status: "ok", earlier_valid_until: earlierUntil }));
      },
    }),
  ];
}
