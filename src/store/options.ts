// Schema of the store's configuration keys.

import { Type } from "typebox";

export const storeOptions = Type.Object(
  {
    path: Type.String({
      default: "./data",
      minLength: 1,
      unit: "path",
      description:
        "Folder of the embedded store, used unless redis.url is set. It is created if it does not exist. Only one process at a time can use it.",
    }),
    durability: Type.Enum(["process", "disk"], {
      default: "process",
      description:
        "Kind of failure that an acknowledged write survives. `process`: a crash of this process. `disk`: also a power failure, because the write waits for fsync.",
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
        "Time during which a repeated client_msg_no of one sender in one channel is recognised as a retry. The reply to a retry names the first message.",
    }),
    retentionS: Type.Integer({
      default: 0,
      minimum: 0,
      description: "Age at which every message is removed from history. 0 means no limit.",
    }),
    maxChannelMessages: Type.Integer({
      default: 0,
      minimum: 0,
      unit: "messages",
      description:
        "Number of newest messages that each channel keeps. Sweeps may ignore an excess of up to 10 percent or 100 messages, whichever is less. 0 means no limit.",
    }),
    sweepIntervalMs: Type.Integer({
      default: 10_000,
      minimum: 100,
      maximum: 86_400_000,
      description:
        "Time between sweeps, which remove expired data and messages over the history limits.",
    }),
  },
  { additionalProperties: false },
);
