// The configuration keys of moving data from one store to another. A schema only.

import { Type } from "typebox";

export const migrateOptions = Type.Object(
  {
    from: Type.String({
      default: "",
      maxLength: 4096,
      description:
        "Data folder of an embedded store (what store.path was) that is moved into redis.url before this node serves anybody; nothing happens when that was done before. The folder stays as it is. Empty: nothing is moved.",
    }),
  },
  { additionalProperties: false },
);
