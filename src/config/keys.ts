// Derives the list of configuration keys from the option schemas: the path and the environment
// variable of each key, and whether its value is secret. Contains only pure functions.

/**
 * The JSON Schema keywords that are used here, plus `unit` and `secret`, which JSON Schema does not
 * define.
 */
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
  readonly unit?: string;
  /** True if the value is never printed and may come from a file named by `<env>_FILE`. */
  readonly secret?: boolean;
}

export interface ConfigKey {
  readonly path: readonly string[];
  /** The parts of the path, joined with dots. Flags and messages use this name. */
  readonly name: string;
  readonly env: string;
  /** True if the value or part of it is secret. */
  readonly secret: boolean;
  readonly schema: OptionSchema;
}

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

/** Returns `JINDOU_API_TLS_CERT_FILE` for `api.tls.certFile`. */
function envName(path: readonly string[]): string {
  const words = path.map((name) => name.replace(/([a-z0-9])([A-Z])/g, "$1_$2"));
  return ["JINDOU", ...words].join("_").toUpperCase();
}

function holdsSecret(schema: OptionSchema): boolean {
  return (
    schema.secret === true ||
    (schema.items !== undefined && holdsSecret(schema.items)) ||
    Object.values(schema.properties ?? {}).some(holdsSecret)
  );
}

/** Returns a description that completes a sentence such as "api.listen must be …". */
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

export function place(
  target: Record<string, unknown>,
  path: readonly string[],
  value: unknown,
): void {
  const [name = "", ...subpath] = path;
  if (subpath.length === 0) {
    target[name] = value;
    return;
  }
  target[name] ??= {};
  place(target[name] as Record<string, unknown>, subpath, value);
}
