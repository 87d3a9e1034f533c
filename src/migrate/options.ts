// Schema of the `migrate` section of the configuration.

import { Type } from "typebox";

export const migrateOptions = Type.Object(
  {
    from: Type.String({
      default: "",
      maxLength: 4096,
      unit: "path",
      description:
        "Data folder of an embedded store (the former store.path). The data is copied into the Redis at redis.url before this node serves clients. If the data was already copied, nothing happens. The users, channels and messages in the folder are not changed. An empty value means that nothing is copied.",
    }),
  },
  { additionalProperties: false },
);
