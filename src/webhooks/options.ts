// Schema of the configuration section `webhooks`.

import { Type } from "typebox";
import {
  WEBHOOK_DEFAULTS,
  WEBHOOK_FORMATS,
  WEBHOOK_LIMITS,
  WEBHOOK_ORDERS,
} from "../broker/webhook-ports.ts";

const CLOSED = { additionalProperties: false };

const endpointOptions = Type.Object(
  {
    id: Type.String({
      pattern: "^[A-Za-z0-9_-]{1,64}$",
      description: "Id of the endpoint. The state of its deliveries is stored under this id.",
    }),
    url: Type.String({
      minLength: 1,
      maxLength: WEBHOOK_LIMITS.maxUrlLength,
      description: "URL of the receiver.",
    }),
    secret: Type.String({
      pattern: "^whsec_",
      maxLength: 128,
      secret: true,
      description: "Secret that signs the requests: `whsec_` and the Base64 of 24 to 64 bytes.",
    }),
    previousSecret: Type.String({
      default: "",
      maxLength: 128,
      secret: true,
      description:
        "Previous value of `secret`, for a rotation. While it is set, each request is signed with both secrets.",
    }),
    types: Type.Array(Type.String({ minLength: 1, maxLength: WEBHOOK_LIMITS.maxTypeLength }), {
      default: [],
      maxItems: WEBHOOK_LIMITS.maxTypes,
      description:
        "Types of events, such as `message.stored` or `message.*`. An empty list means the default of the format. The format `wukongim` has WuKongIM's types by default, and the other formats have all types except `session.opened`, `session.closed` and `command.sent`.",
    }),
    channelType: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 2,
      description: "Type of the channels whose events are delivered. 0 means all types.",
    }),
    channelPrefix: Type.String({
      default: "",
      maxLength: WEBHOOK_LIMITS.maxPrefixLength,
      description:
        "Prefix of the ids of the channels whose events are delivered. For a personal channel, either user's uid may begin with it. An empty value means all channels.",
    }),
    format: Type.Enum([...WEBHOOK_FORMATS], {
      default: "standard",
      description: "Format of the bodies (docs/webhooks.md, section Formats).",
    }),
    batchMax: Type.Integer({
      default: WEBHOOK_DEFAULTS.batch.max,
      minimum: 1,
      maximum: WEBHOOK_LIMITS.maxBatch,
      unit: "events",
      description: "Maximum number of events in a request. With 1, the event itself is the body.",
    }),
    batchWaitMs: Type.Integer({
      default: WEBHOOK_DEFAULTS.batch.waitMs,
      minimum: 0,
      maximum: WEBHOOK_LIMITS.maxBatchWaitMs,
      unit: "milliseconds",
      description: "Time for which an event waits for further events.",
    }),
    order: Type.Enum([...WEBHOOK_ORDERS], {
      default: WEBHOOK_DEFAULTS.order,
      description:
        "`channel`: events of a channel arrive in order, so a request waits until the previous one is accepted or given up. `none`: a request that must be repeated does not delay later requests, unless four requests of the same partition of the feed must be repeated.",
    }),
    maxAgeS: Type.Integer({
      default: WEBHOOK_DEFAULTS.maxAgeS,
      minimum: WEBHOOK_LIMITS.minAgeS,
      maximum: WEBHOOK_LIMITS.maxAgeS,
      unit: "seconds",
      description:
        "Time for which a failing request is repeated. If it still fails after this time, the endpoint is disabled.",
    }),
  },
  CLOSED,
);

export const webhooksOptions = Type.Object(
  {
    endpoints: Type.Array(endpointOptions, {
      default: [],
      maxItems: 100,
      description:
        "Receivers of events, besides those that are created with `POST /webhooks` (docs/webhooks.md). They may be in internal networks.",
    }),
    max: Type.Integer({
      default: 100,
      minimum: 0,
      maximum: 1000,
      unit: "endpoints",
      description: "Maximum number of endpoints that can be created with `POST /webhooks`.",
    }),
    allowNetworks: Type.Array(Type.String({ minLength: 1 }), {
      default: [],
      description:
        "Internal networks in which endpoints of `POST /webhooks` may be: networks in CIDR form (`10.0.0.0/8`) or single addresses. Requests to these networks may also use http. If calls need no credential, loopback addresses are always allowed. Requests are never sent to link-local or multicast addresses.",
    }),
    compressUidsAbove: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 1_000_000,
      unit: "users",
      description:
        "Number of users above which the list of users in `msg.offline` (format `wukongim`) is compressed with gzip, like `channel.subscriberCompressOfCount` of WuKongIM. 0 means never.",
    }),
    timeoutMs: Type.Integer({
      default: 15_000,
      minimum: 1000,
      maximum: 30_000,
      unit: "milliseconds",
      description: "Time limit for one request to a receiver, including its complete reply.",
    }),
  },
  CLOSED,
);
