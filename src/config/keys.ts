// Configuration keys, derived from the option schemas: path, environment name, default, secrecy.
// Pure.

/** The part of JSON Schema that option schemas use. */
export interface OptionSchema {
  readonly type?: string;
  readonly properties?: Readonly<Record<string, OptionSchema>>;
  readonly items?: OptionSchema;
  readonly required?: readonly string[];
  readonly enum?: readonly unknown[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly pattern?: string;
  readonly default?: unknown;
  readonly description?: string;
  /** E.g. `milliseconds`. */
  readonly unit?: string;
  /** Never printed; may come from a file named by `<environment name>_FILE`. */
  readonly secret?: boolean;
}

/** One configuration key: a leaf of the schema. */
export interface ConfigKey {
  readonly path: readonly string[];
  /** Path joined with dots: the flag's name and the name in messages. */
  readonly name: string;
  readonly env: string;
  /** Whether the value, or a part of it, is secret. */
  readonly secret: boolean;
  readonly schema: OptionSchema;
}

/** All keys below `schema`, in the order they are declared. */
export function keysOf(schema: OptionSchema, path: readonly string[] = []): readonly ConfigKey[] {
  if (schema.properties === undefined) return [keyAt(schema, path)];
  return Object.entries(schema.properties).flatMap(([name, child]) =>
    keysOf(child, [...path, name]),
  );
}

function keyAt(schema: OptionSchema, path: readonly string[]): ConfigKey {
  return {
    path,
    name: path.join("."),
    env: envName(path),
    secret: holdsSecret(schema),
    schema,
  };
}

/** `["api", "tls", "certFile"]` → `JINDOU_API_TLS_CERT_FILE`. */
function envName(path: readonly string[]): string {
  const words = path.map((part) => part.replace(/([a-z0-9])([A-Z])/g, "$1_$2"));
  return ["JINDOU", ...words].join("_").toUpperCase();
}

function holdsSecret(schema: OptionSchema): boolean {
  return (
    schema.secret === true ||
    (schema.items !== undefined && holdsSecret(schema.items)) ||
    Object.values(schema.properties ?? {}).some(holdsSecret)
  );
}

/** The values `schema` accepts, to complete "must be …". */
export function describe(schema: OptionSchema): string {
  if (schema.enum !== undefined)
    return `one of ${schema.enum.map((value) => JSON.stringify(value)).join(", ")}`;
  switch (schema.type) {
    case "integer":
    case "number":
      return `${schema.type === "integer" ? "an integer" : "a number"}${range(schema)}`;
    case "boolean":
      return "true or false";
    case "array":
      return schema.items?.type === "object" ? "a list of objects" : "a list of strings";
    case "object":
      return "an object";
    default:
      return `a ${schema.minLength ? "non-empty " : ""}string${bound(schema)}`;
  }
}

/** The unit of a key, from its schema or from the ending of its name; undefined without a unit. */
export function unitOf(key: ConfigKey): string | undefined {
  const ending = /[A-Z][a-z]*$/.exec(key.name)?.[0] ?? "";
  return key.schema.unit ?? UNITS[ending];
}

const UNITS: Readonly<Record<string, string>> = {
  Ms: "milliseconds",
  S: "seconds",
  Bytes: "bytes",
};

function range({ minimum, maximum }: OptionSchema): string {
  if (minimum !== undefined && maximum !== undefined) return ` from ${minimum} to ${maximum}`;
  if (minimum !== undefined) return ` of at least ${minimum}`;
  return maximum === undefined ? "" : ` of at most ${maximum}`;
}

function bound({ maxLength, pattern }: OptionSchema): string {
  const length = maxLength === undefined ? "" : ` of at most ${maxLength} characters`;
  return pattern === undefined ? length : `${length} matching ${pattern}`;
}

/** Sets the value at `path`, creating the objects on the way. */
export function place(
  target: Record<string, unknown>,
  path: readonly string[],
  value: unknown,
): void {
  const [name = "", ...rest] = path;
  if (rest.length === 0) {
    target[name] = value;
    return;
  }
  target[name] ??= {};
  place(target[name] as Record<string, unknown>, rest, value);
}
