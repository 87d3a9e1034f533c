// The store's configuration keys. A schema only: values reach the drivers as plain numbers and
// strings.

import { Type } from "typebox";

export const storeOptions = Type.Object(
  {
    path: Type.String({
      default: "./data",
      minLength: 1,
      description:
        "Folder of the embedded store, used unless redis.url is set. Created when missing; one process at a time.",
    }),
    durability: Type.Enum(["process", "disk"], {
      default: "process",
      description:
        "What an acknowledged write survives: process = the death of this process, disk = power loss as well (waits for fsync).",
    }),
    maxMemtableBytes: Type.Integer({
      default: 67_108_864,
      minimum: 1_048_576,
      maximum: 1_073_741_824,
      description:
        "Maximum size of the memtable: the messages and stream events that are in the WAL and not yet in the database. When it is full, sends are rejected with the code overloaded.",
    }),
    dedupeWindowS: Type.Integer({
      default: 86_400,
      minimum: 1,
      description:
        "Seconds during which a repeated client_msg_no of one sender in one channel is answered with the first message.",
    }),
    retentionS: Type.Integer({
      default: 0,
      minimum: 0,
      description: "Seconds after which every message leaves history; 0 = never.",
    }),
    maxChannelMessages: Type.Integer({
      default: 0,
      minimum: 0,
      unit: "messages",
      description:
        "How many messages each channel keeps, the newest; 0 = all. Older ones leave history at a sweep, once there are a tenth more or 100, whichever is less.",
    }),
    sweepIntervalMs: Type.Integer({
      default: 10_000,
      minimum: 100,
      maximum: 86_400_000,
      description:
        "Milliseconds between removals of expired messages, of messages beyond the limits of history and of access tokens that ended.",
    }),
  },
  { additionalProperties: false },
);
