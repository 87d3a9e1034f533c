// HTTP calls that manage webhooks: their settings, secrets, tests, replays, attempts and failures.

import { type Static, Type } from "typebox";
import { BrokerError } from "../broker/errors.ts";
import { typesError } from "../broker/events.ts";
import {
  WEBHOOK_FORMATS,
  WEBHOOK_LIMITS,
  WEBHOOK_ORDERS,
  type WebhookAttempt,
  type WebhookChanges,
  type WebhookFailure,
  type WebhookRefusal,
  type Webhooks,
  type WebhookView,
} from "../broker/webhook-ports.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { edgeReply, errorReply } from "./errors.ts";
import { channelType, flag, WELL_FORMED_PATTERN } from "./fields.ts";
import { JSON_HEADERS, jsonReply, OK_REPLY } from "./reply.ts";
import { count, text } from "./reply-schemas.ts";
import { type ApiRoute, DONE, plainRoute, postRoute, queryRoute } from "./route.ts";

const TYPE_PATTERN = "^(\\*|[a-z0-9_]+(\\.[a-z0-9_]+)*(\\.?\\*)?)$";
const MAX_OVERLAP_S = 2_592_000;
const DEFAULT_ATTEMPTS = 100;
const MAX_ATTEMPTS = 1000;

const types = Type.Array(
  Type.String({
    pattern: TYPE_PATTERN,
    maxLength: WEBHOOK_LIMITS.maxTypeLength,
    description: "Event type, or a pattern such as message.*",
  }),
  {
    maxItems: WEBHOOK_LIMITS.maxTypes,
    description:
      "Event types. A name with * at the end selects all types that begin with the text before it. A plain * does not select session.opened, session.closed or command.sent; select them by their full names, or with session.* or command.*",
  },
);

const settings = {
  types,
  channels: Type.Object(
    {
      type: Type.Optional(channelType),
      prefix: Type.Optional(
        Type.String({
          maxLength: WEBHOOK_LIMITS.maxPrefixLength,
          pattern: WELL_FORMED_PATTERN,
          description:
            "Prefix of the channel id. A personal channel matches if the uid of either user begins with it",
        }),
      ),
    },
    {
      description:
        "Channels whose events are delivered. This filter does not affect events without a channel",
    },
  ),
  format: Type.Enum([...WEBHOOK_FORMATS], {
    type: "string",
    title: "WebhookFormat",
    description: "Format of the request bodies",
    examples: ["standard"],
  }),
  batch: Type.Object(
    {
      max: Type.Integer({
        minimum: 1,
        maximum: WEBHOOK_LIMITS.maxBatch,
        description: "Maximum number of events in a request. With 1, the event itself is the body",
      }),
      waitMs: Type.Integer({
        minimum: 0,
        maximum: WEBHOOK_LIMITS.maxBatchWaitMs,
        description: "Maximum time for which an event waits for further events, in milliseconds",
      }),
    },
    {
      description:
        "Maximum number of events in a request, and maximum time for which an event waits for further events",
    },
  ),
  order: Type.Enum([...WEBHOOK_ORDERS], {
    type: "string",
    title: "WebhookOrder",
    description:
      "channel: events of a channel arrive in order. none: a request that is being retried does not delay later requests, unless four requests of a feed partition are being retried",
    examples: ["channel"],
  }),
  enabled: flag("0: nothing is delivered until enabled is 1 again"),
  maxAgeS: Type.Integer({
    minimum: WEBHOOK_LIMITS.minAgeS,
    maximum: WEBHOOK_LIMITS.maxAgeS,
    description:
      "Maximum number of seconds for which a failing request is repeated. If it still fails after this time, the webhook is disabled",
  }),
};

const optional = {
  types: Type.Optional(settings.types),
  channels: Type.Optional(settings.channels),
  format: Type.Optional(settings.format),
  batch: Type.Optional(
    Type.Object(
      {
        max: Type.Optional(settings.batch.properties.max),
        waitMs: Type.Optional(settings.batch.properties.waitMs),
      },
      {
        description:
          "Maximum number of events in a request, and maximum time for which an event waits for further events",
      },
    ),
  ),
  order: Type.Optional(settings.order),
  enabled: Type.Optional(settings.enabled),
  maxAgeS: Type.Optional(settings.maxAgeS),
};

const url = Type.String({
  pattern: WELL_FORMED_PATTERN,
  minLength: 1,
  maxLength: WEBHOOK_LIMITS.maxUrlLength,
  description: "Absolute URL that receives the events",
});

const URL_EXAMPLE = "https://backend.example.com/webhooks/jindou";

const webhookBodies = {
  create: Type.Object(
    { url, ...optional },
    {
      title: "WebhookRequest",
      description: "A webhook to create",
      examples: [{ url: URL_EXAMPLE, types: ["message.*"] }],
    },
  ),
  update: Type.Object(
    { url: Type.Optional(url), ...optional },
    {
      title: "WebhookChange",
      description: "Settings to change. Absent settings are not changed",
      examples: [{ enabled: 1 }],
    },
  ),
  replay: Type.Object(
    {
      after: Type.String({
        pattern: WELL_FORMED_PATTERN,
        minLength: 1,
        maxLength: 4096,
        description:
          "Position after which the range begins: a cursor from GET /events, a time (RFC 3339 or Unix milliseconds), or `oldest`",
      }),
      before: Type.Optional(
        Type.String({
          pattern: WELL_FORMED_PATTERN,
          minLength: 1,
          maxLength: 4096,
          description: "Position at which the range ends, in the form of `after`. Absent means now",
        }),
      ),
      types: Type.Optional(types),
    },
    {
      title: "WebhookReplay",
      description: "A range of the feed to deliver again",
      examples: [{ after: "2026-11-24T00:00:00Z" }],
    },
  ),
  secrets: Type.Object(
    {
      overlapS: Type.Integer({
        minimum: 0,
        maximum: MAX_OVERLAP_S,
        description: "Seconds for which the requests are also signed with the earlier secrets",
      }),
    },
    {
      title: "WebhookRotation",
      description: "Number of seconds for which requests are also signed with the earlier secrets",
      examples: [{ overlapS: 3600 }],
    },
  ),
};

const attemptsQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_ATTEMPTS,
      description: `Maximum number of attempts to return. Absent means ${DEFAULT_ATTEMPTS}`,
    }),
  ),
});

const webhookExample = {
  id: "wh_Z3Jvd2luZyB0",
  url: URL_EXAMPLE,
  types: ["message.*"],
  channels: {},
  format: "standard",
  batch: { max: 100, waitMs: 200 },
  order: "channel",
  enabled: 1,
  maxAgeS: 259_200,
  fixed: 0,
  disabled_reason: "",
  created_at: 1_790_000_000_000,
  replays: 0,
};

const webhook = Type.Object(
  {
    id: text("Id of the webhook"),
    url: text("URL that receives the events"),
    ...settings,
    fixed: flag("1: the webhook is defined in the configuration file"),
    disabled_reason: text("Reason why a node disabled the webhook; empty if no node did"),
    created_at: count("Creation time of the webhook in Unix milliseconds"),
    replays: count("Number of replays that have not ended yet"),
  },
  { title: "Webhook", description: "A webhook, without its secrets", examples: [webhookExample] },
);

const attemptExample = {
  time: 1_790_000_000_000,
  webhook_id: "17-1-100",
  attempt: 1,
  events: 100,
  replay: 0,
  status: 204,
  duration_ms: 12,
  error: "",
  response: "",
  node_id: "n1",
};

const attempt = Type.Object(
  {
    time: count("Time of the attempt in Unix milliseconds"),
    webhook_id: text("Value of the webhook-id header"),
    attempt: count("Attempt number, starting at 1"),
    events: count("Number of events in the request; 0 for a test"),
    replay: flag("1: the request belongs to a replay"),
    status: count("HTTP status of the reply; 0 if there was no complete reply"),
    duration_ms: count(
      "Time from the start of the request to the end of the reply, in milliseconds",
    ),
    error: text("Reason why there was no complete reply; empty if the reply was complete"),
    response: text("First KiB of a reply without a 2xx status"),
    node_id: text("Node that sent the request"),
  },
  {
    title: "WebhookAttempt",
    description: "One request to the receiver",
    examples: [attemptExample],
  },
);

const failureExample = {
  event_id: "17-000000000123-7036874417766",
  type: "message.stored",
  timestamp: "2026-11-24T00:00:00.000Z",
  parked_at: 1_790_000_000_000,
  attempts: 5,
  status: 422,
  error: "",
  response: "no such user",
};

const failure = Type.Object(
  {
    event_id: text("Id of the event"),
    type: text("Type of the event"),
    timestamp: text("Time of the event (RFC 3339)"),
    parked_at: count("Time in Unix milliseconds at which delivery of the event was abandoned"),
    attempts: count("Number of attempts"),
    status: count("HTTP status of the last attempt; 0 if it got no complete reply"),
    error: text("Reason why there was no complete reply; empty if the reply was complete"),
    response: text("First KiB of the reply to the last attempt"),
  },
  {
    title: "WebhookFailure",
    description: "An event that the receiver did not accept",
    examples: [failureExample],
  },
);

const created = Type.Object(
  {
    id: text("Id of the webhook"),
    secret: text("Secret with which the requests are signed. It is not shown again"),
  },
  {
    title: "CreatedWebhook",
    description: "Id and secret of a new webhook",
    examples: [{ id: "wh_Z3Jvd2luZyB0", secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" }],
  },
);

const listed = Type.Object(
  { webhooks: Type.Array(webhook, { description: "Webhooks, ordered by id" }) },
  { title: "WebhookList", description: "All webhooks", examples: [{ webhooks: [webhookExample] }] },
);

const attempts = Type.Object(
  { attempts: Type.Array(attempt, { description: "Attempts, newest first" }) },
  {
    title: "WebhookAttemptList",
    description: "The latest requests to the receiver, with their results",
    examples: [{ attempts: [attemptExample] }],
  },
);

const failures = Type.Object(
  { failures: Type.Array(failure, { description: "Failures, oldest first" }) },
  {
    title: "WebhookFailureList",
    description: "Events that the receiver did not accept and that are no longer retried",
    examples: [{ failures: [failureExample] }],
  },
);

const replayed = Type.Object(
  { id: text("Id of the replay") },
  {
    title: "WebhookReplayStarted",
    description: "Id of the replay that has begun",
    examples: [{ id: "Zm9vYmFy" }],
  },
);

const rotated = Type.Object(
  { secret: text("New secret. It is not shown again") },
  {
    title: "WebhookSecret",
    description: "A new secret",
    examples: [{ secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" }],
  },
);

const PATH = "/webhooks/:id";

type CreateBody = Static<typeof webhookBodies.create>;
type UpdateBody = Static<typeof webhookBodies.update>;

export function createWebhookRoutes(webhooks: Webhooks): readonly ApiRoute[] {
  const reading = { access: ["webhooks:read"], tag: "webhooks" } as const;
  const writing = { access: ["webhooks:write"], tag: "webhooks" } as const;
  const ofWebhook = {
    params: { id: "Id of the webhook" },
    errors: ["unavailable"],
    edgeErrors: ["webhook_not_found"],
  } as const;
  const idOf = ({ params: [id = ""] }: HttpRequest) => id;
  return [
    postRoute({
      ...writing,
      path: "/webhooks",
      operation: "createWebhook",
      summary: "Creates a webhook. Events that occur after this call are delivered to it",
      body: webhookBodies.create,
      success: { status: 201, description: "The webhook was created", body: created },
      errors: ["unavailable"],
      edgeErrors: ["url_refused", "events_off", "webhook_limit"],
      handle: async (body) => {
        const result = await webhooks.create({ ...changesOf(body), url: body.url });
        return replyTo(result, (value) => ({
          ...{ status: 201, headers: JSON_HEADERS },
          body: JSON.stringify(value),
        }));
      },
    }),
    plainRoute({
      ...reading,
      method: "GET",
      path: "/webhooks",
      operation: "listWebhooks",
      summary: "Lists the webhooks, without their secrets",
      success: { description: "The webhooks", body: listed },
      errors: ["unavailable"],
      handle: async () => json({ webhooks: (await webhooks.list()).map(webhookJson) }),
    }),
    postRoute({
      ...writing,
      method: "PATCH",
      path: PATH,
      operation: "updateWebhook",
      summary: "Changes the settings that the body contains",
      body: webhookBodies.update,
      success: { description: "The webhook after the change", body: webhook },
      ...ofWebhook,
      edgeErrors: ["webhook_not_found", "webhook_fixed", "url_refused"],
      handle: async (body, request) =>
        replyTo(await webhooks.update(idOf(request), changesOf(body)), (view) =>
          json(webhookJson(view)),
        ),
    }),
    plainRoute({
      ...writing,
      method: "DELETE",
      path: PATH,
      operation: "deleteWebhook",
      summary: "Deletes a webhook and its failures",
      success: DONE,
      ...ofWebhook,
      edgeErrors: ["webhook_not_found", "webhook_fixed"],
      handle: async (request) => replyTo(await webhooks.remove(idOf(request)), () => OK_REPLY),
    }),
    plainRoute({
      ...writing,
      method: "POST",
      path: `${PATH}/test`,
      operation: "sendTestWebhook",
      summary: "Sends a ping event to the receiver and returns the reply",
      success: { description: "The attempt", body: attempt },
      ...ofWebhook,
      handle: async (request) => attemptReply(await webhooks.test(idOf(request))),
    }),
    postRoute({
      ...writing,
      path: `${PATH}/replay`,
      operation: "createWebhookReplay",
      summary: "Delivers a range of the feed again, while live delivery continues",
      body: webhookBodies.replay,
      success: { description: "The replay has begun", body: replayed },
      ...ofWebhook,
      errors: ["unavailable", "bad_cursor"],
      edgeErrors: ["webhook_not_found", "events_off", "webhook_limit"],
      handle: async ({ after, before, types: named = [] }, request) => {
        assertTypes(named);
        return replyTo(await webhooks.replay(idOf(request), { after, before, types: named }), json);
      },
    }),
    postRoute({
      ...writing,
      path: `${PATH}/secrets`,
      operation: "rotateWebhookSecret",
      summary:
        "Adds a secret. Until the overlap ends, requests are signed with the earlier secrets too",
      body: webhookBodies.secrets,
      success: { description: "The new secret", body: rotated },
      ...ofWebhook,
      edgeErrors: ["webhook_not_found", "webhook_fixed", "webhook_limit"],
      handle: async ({ overlapS }, request) =>
        replyTo(await webhooks.addSecret(idOf(request), overlapS), json),
    }),
    queryRoute({
      ...reading,
      path: `${PATH}/attempts`,
      operation: "listWebhookAttempts",
      summary: "Lists the latest requests to the receiver, with their results",
      query: attemptsQuery,
      success: { description: "The attempts", body: attempts },
      ...ofWebhook,
      handle: async ({ limit = DEFAULT_ATTEMPTS }, request) =>
        replyTo(await webhooks.attempts(idOf(request), limit), (rows) =>
          json({ attempts: rows.map(attemptJson) }),
        ),
    }),
    plainRoute({
      ...reading,
      method: "GET",
      path: `${PATH}/failures`,
      operation: "listWebhookFailures",
      summary: "Lists the events that the receiver did not accept and that are no longer retried",
      success: { description: "The failures", body: failures },
      ...ofWebhook,
      handle: async (request) =>
        replyTo(await webhooks.failures(idOf(request)), (rows) =>
          json({ failures: rows.map(failureJson) }),
        ),
    }),
    plainRoute({
      ...writing,
      method: "POST",
      path: `${PATH}/failures/:event_id/retry`,
      operation: "sendWebhookFailure",
      summary:
        "Sends a failed event again. An event that the receiver accepts is no longer listed as a failure",
      success: { description: "The attempt", body: attempt },
      ...ofWebhook,
      params: { id: "Id of the webhook", event_id: "Id of the event" },
      edgeErrors: ["webhook_not_found", "webhook_failure_not_found"],
      handle: async (request) =>
        attemptReply(await webhooks.retry(idOf(request), request.params[1] ?? "")),
    }),
  ];
}

function changesOf({
  url: newUrl,
  enabled,
  batch,
  ...others
}: CreateBody | UpdateBody): WebhookChanges {
  assertTypes(others.types);
  return {
    ...others,
    url: newUrl,
    batch,
    enabled: enabled === undefined ? undefined : enabled === 1,
  };
}

function assertTypes(names: readonly string[] = []): void {
  const message = typesError(names);
  if (message !== undefined)
    throw new BrokerError("bad_request", { message, details: [{ path: "types", message }] });
}

function replyTo<Result extends object | string>(
  result: Result | WebhookRefusal,
  reply: (result: Result) => HttpReply,
): HttpReply {
  if (!isRefusal(result)) return reply(result);
  const { refusal, message } = result;
  return refusal === "bad_cursor" || refusal === "overloaded"
    ? errorReply(refusal, message === undefined ? {} : { message })
    : edgeReply(refusal, {}, message);
}

function isRefusal(result: object | string): result is WebhookRefusal {
  return typeof result === "object" && "refusal" in result;
}

function attemptReply(result: WebhookAttempt | WebhookRefusal): HttpReply {
  return replyTo(result, (value) => json(attemptJson(value)));
}

function json(value: object): HttpReply {
  return jsonReply(JSON.stringify(value));
}

function webhookJson(view: WebhookView) {
  const { isFixed, disabledReason, createdAtMs, enabled, ...others } = view;
  return {
    ...others,
    enabled: enabled ? 1 : 0,
    fixed: isFixed ? 1 : 0,
    disabled_reason: disabledReason,
    created_at: createdAtMs,
  };
}

function attemptJson({
  timeMs,
  webhookId,
  isReplay,
  durationMs,
  reply,
  nodeId,
  ...rest
}: WebhookAttempt) {
  return {
    time: timeMs,
    webhook_id: webhookId,
    ...rest,
    replay: isReplay ? 1 : 0,
    duration_ms: durationMs,
    response: reply,
    node_id: nodeId,
  };
}

function failureJson({ event, parkedMs, attempts: tries, status, error, reply }: WebhookFailure) {
  const { id, type, timestamp } = event;
  return {
    ...{ event_id: id, type, timestamp, parked_at: parkedMs },
    ...{ attempts: tries, status, error, response: reply },
  };
}
