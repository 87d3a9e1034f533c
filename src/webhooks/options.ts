// Schema of the `webhooks` configuration section.

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
      description:
        "Secret that signs the requests: `whsec_` followed by the Base64 encoding of 24 to 64 bytes.",
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
        "Event types, such as `message.stored` or `message.*`. An empty list means the format's default: WuKongIM's types for `wukongim`, and for the other formats all types except `session.opened`, `session.closed` and `command.sent`.",
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
        "Id prefix of the channels whose events are delivered. A personal channel matches if either user's uid begins with the prefix. An empty value means all channels.",
    }),
    format: Type.Enum([...WEBHOOK_FORMATS], {
      default: "standard",
      description: "Format of the request bodies (docs/webhooks.md, section Formats).",
    }),
    batchMax: Type.Integer({
      default: WEBHOOK_DEFAULTS.batch.max,
      minimum: 1,
      maximum: WEBHOOK_LIMITS.maxBatch,
      unit: "events",
      description:
        "Maximum number of events in a request. With 1, the event itself is the body, except in the format `wukongim`.",
    }),
    batchWaitMs: Type.Integer({
      default: WEBHOOK_DEFAULTS.batch.waitMs,
      minimum: 0,
      maximum: WEBHOOK_LIMITS.maxBatchWaitMs,
      unit: "milliseconds",
      description: "Maximum time for which an event waits for further events.",
    }),
    order: Type.Enum([...WEBHOOK_ORDERS], {
      default: WEBHOOK_DEFAULTS.order,
      description:
        "`channel`: events of a channel arrive in order, so a request waits until the previous one has been accepted or abandoned. `none`: a request that must be repeated does not delay later requests, unless four requests from the same feed partition must be repeated.",
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
        "Receivers of events, in addition to those created with `POST /webhooks` (docs/webhooks.md). They may be in internal networks.",
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
        "Internal networks in which endpoints created with `POST /webhooks` may be located, in CIDR form (`10.0.0.0/8`) or as single addresses. Requests to these networks may also use http. If API calls need no credential, loopback addresses are always allowed. Requests are never sent to link-local or multicast addresses.",
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
