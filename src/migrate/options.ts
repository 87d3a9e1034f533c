// Configuration schema of the section `migrate`.

import { Type } from "typebox";

export const migrateOptions = Type.Object(
  {
    from: Type.String({
      default: "",
      maxLength: 4096,
      unit: "path",
      description:
        "Data folder of an embedded store (its former store.path). Its data is moved into redis.url before this node serves clients. If it has already been moved, nothing happens. The folder is not changed. An empty value means that nothing is moved.",
    }),
  },
  { additionalProperties: false },
);
