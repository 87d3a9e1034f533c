// The schema of the whole configuration and the type of the loaded configuration. It combines the
// sections of all modules with the sections of the process: `node`, `start` and `drain`.

import { type Static, Type } from "typebox";
import { adminOptions, apiOptions, authOptions, managersOptions } from "../api/options.ts";
import { jwtOptions } from "../auth/options.ts";
import {
  commandsOptions,
  contentOptions,
  eventsOptions,
  logsOptions,
  messagesOptions,
  pushOptions,
  streamsOptions,
} from "../broker/options.ts";
import { clusterOptions } from "../cluster/options.ts";
import { apiProperties, clusterProperties, protocolOptions } from "../compat/wukongim/options.ts";
import { clientOptions, presenceOptions } from "../gateway/options.ts";
import { hooksOptions } from "../hooks/options.ts";
import { migrateOptions } from "../migrate/options.ts";
import { logOptions } from "../observe/options.ts";
import { redisOptions } from "../redis/options.ts";
import { storeOptions } from "../store/options.ts";
import { socketsOptions, transportOptions } from "../transport/options.ts";
import { webhooksOptions } from "../webhooks/options.ts";
import { type ConfigKey, keysOf, type OptionSchema } from "./keys.ts";

const nodeOptions = Type.Object(
  {
    id: Type.String({
      default: "",
      maxLength: 64,
      pattern: "^[A-Za-z0-9._-]*$",
      description:
        "Name of this node, made of letters, digits, `.`, `_` and `-`. An empty value means a random name at each start.",
    }),
  },
  { additionalProperties: false },
);

const startOptions = Type.Object(
  {
    waitForStoreS: Type.Integer({
      default: 60,
      minimum: 0,
      maximum: 3600,
      unit: "seconds",
      description:
        "Maximum time for which a starting node waits while Redis cannot be reached, is still loading its data or has no primary yet. Meanwhile, `/healthz` returns 200, and every other call returns 503. If Redis still cannot be used after this time, the node exits with code 1. 0 means that the node does not wait.",
    }),
  },
  { additionalProperties: false },
);

const drainOptions = Type.Object(
  {
    noticeMs: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "Time after SIGTERM or SIGINT during which `/readyz` returns 503 while everything still works. After that, clients are disconnected. Set it a little higher than the interval of the load balancer's health checks.",
    }),
    timeoutMs: Type.Integer({
      default: 10_000,
      minimum: 0,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "Time limit for disconnecting clients and finishing calls, counted from the end of `drain.noticeMs`. When it expires, the remaining connections are closed.",
    }),
  },
  { additionalProperties: false },
);

/** One property for each section, in the order of the reference page. */
const configSchema = Type.Object(
  {
    api: Type.Object(
      { ...apiOptions.properties, ...apiProperties },
      { additionalProperties: false },
    ),
    auth: Type.Object(
      { ...authOptions.properties, jwt: jwtOptions },
      { additionalProperties: false },
    ),
    hooks: hooksOptions,
    admin: adminOptions,
    managers: managersOptions,
    client: clientOptions,
    presence: presenceOptions,
    protocol: protocolOptions,
    transport: transportOptions,
    sockets: socketsOptions,
    messages: messagesOptions,
    content: contentOptions,
    streams: streamsOptions,
    logs: logsOptions,
    events: eventsOptions,
    push: pushOptions,
    commands: commandsOptions,
    webhooks: webhooksOptions,
    store: storeOptions,
    redis: redisOptions,
    cluster: Type.Object(
      { ...clusterOptions.properties, ...clusterProperties },
      { additionalProperties: false },
    ),
    migrate: migrateOptions,
    log: logOptions,
    node: nodeOptions,
    start: startOptions,
    drain: drainOptions,
  },
  { additionalProperties: false },
);

export type Config = DeepReadonly<Static<typeof configSchema>>;

type DeepReadonly<Value> = Value extends readonly (infer Item)[]
  ? readonly DeepReadonly<Item>[]
  : Value extends object
    ? { readonly [Key in keyof Value]: DeepReadonly<Value[Key]> }
    : Value;

/** The schema as plain JSON Schema. TypeBox types are JSON Schema at run time. */
export const plainSchema: OptionSchema = configSchema as OptionSchema;

export const CONFIG_KEYS: readonly ConfigKey[] = keysOf(plainSchema);
