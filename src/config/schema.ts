// The whole configuration: every room's section in one schema, and the type of the loaded value. No state.

import { type Static, Type } from "typebox";
import {
  adminOptions,
  apiOptions,
  authOptions,
  managersOptions,
} from "../api/options.ts";
import {
  commandsOptions,
  contentOptions,
  messagesOptions,
  streamsOptions,
} from "../broker/options.ts";
import { clusterOptions } from "../cluster/options.ts";
import { clientOptions } from "../gateway/options.ts";
import { migrateOptions } from "../migrate/options.ts";
import { logOptions } from "../observe/options.ts";
import { redisOptions } from "../redis/options.ts";
import { storeOptions } from "../store/options.ts";
import { socketsOptions } from "../transport/options.ts";
import { type ConfigKey, keysOf, type OptionSchema } from "./keys.ts";
import { drainOptions, nodeOptions } from "./options.ts";

/** One property per section, in the order the reference page shows them. */
const configSchema = Type.Object(
  {
    api: apiOptions,
    auth: authOptions,
    admin: adminOptions,
    managers: managersOptions,
    client: clientOptions,
    sockets: socketsOptions,
    messages: messagesOptions,
    content: contentOptions,
    streams: streamsOptions,
    commands: commandsOptions,
    store: storeOptions,
    redis: redisOptions,
    cluster: clusterOptions,
    migrate: migrateOptions,
    log: logOptions,
    node: nodeOptions,
    drain: drainOptions,
  },
  { additionalProperties: false },
);

/** A validated configuration. Frozen through and through. */
export type Config = DeepReadonly<Static<typeof configSchema>>;

export type DeepReadonly<Value> = Value extends readonly (infer Item)[]
  ? readonly DeepReadonly<Item>[]
  : Value extends object
    ? { readonly [Key in keyof Value]: DeepReadonly<Value[Key]> }
    : Value;

/** The schema as plain JSON Schema, which is how `config/` walks it. TypeBox types are that at run time. */
export const plainSchema: OptionSchema = configSchema as OptionSchema;

/** All keys, in the order of the sections. */
export const CONFIG_KEYS: readonly ConfigKey[] = keysOf(plainSchema);
