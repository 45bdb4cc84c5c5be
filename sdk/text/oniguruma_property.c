/* SPDX-License-Identifier: MIT */
#include "sdk/text/oniguruma_property.h"

#include <stdio.h>

#define PROPERTY_NAME_MAX 40u

const char oniguruma_word[] = "0-9A-Z_a-z\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}"
			      "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
const char oniguruma_word_alone[] = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
/* Ranges, because PCRE2 tests them faster than properties, and its \s has U+180E. */
const char oniguruma_space[] =
	"\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
	"\\x{202f}\\x{205f}\\x{3000}";
const char oniguruma_hex[] = "0-9A-Fa-f";

/* By their bits. */
static const char *const property_categories[] = {
	"Lu",
	"Ll",
	"Lt",
	"Lm",
	"Lo",
	"Mn",
	"Mc",
	"Me",
	"Nd",
	"Nl",
	"No",
	"Pc",
	"Pd",
	"Ps",
	"Pe",
	"Pi",
	"Pf",
	"Po",
	"Sm",
	"Sc",
	"Sk",
	"So",
	"Zs",
	"Zl",
	"Zp",
	"Cc",
	"Cf",
	"Co",
	"Cs",
	"Cn",
};
_Static_assert(sizeof(property_categories) / sizeof(property_categories[0]) == ONIGURUMA_CATEGORIES,
	"a bit for each category");

/* Names of properties, without spaces, - and _ and in lower case, and the items that they stand
 * for. */
struct property_name {
	const char *name, *items;
};

static const struct property_name property_names[] = {
	{"letter", "\\p{L}"},
	{"uppercaseletter", "\\p{Lu}"},
	{"lowercaseletter", "\\p{Ll}"},
	{"titlecaseletter", "\\p{Lt}"},
	{"modifierletter", "\\p{Lm}"},
	{"otherletter", "\\p{Lo}"},
	{"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
	{"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},
	{"mark", "\\p{M}"},
	{"combiningmark", "\\p{M}"},
	{"nonspacingmark", "\\p{Mn}"},
	{"spacingmark", "\\p{Mc}"},
	{"enclosingmark", "\\p{Me}"},
	{"number", "\\p{N}"},
	{"decimalnumber", "\\p{Nd}"},
	{"letternumber", "\\p{Nl}"},
	{"othernumber", "\\p{No}"},
	{"punctuation", "\\p{P}"},
	{"connectorpunctuation", "\\p{Pc}"},
	{"dashpunctuation", "\\p{Pd}"},
	{"openpunctuation", "\\p{Ps}"},
	{"closepunctuation", "\\p{Pe}"},
	{"initialpunctuation", "\\p{Pi}"},
	{"finalpunctuation", "\\p{Pf}"},
	{"otherpunctuation", "\\p{Po}"},
	{"symbol", "\\p{S}"},
	{"mathsymbol", "\\p{Sm}"},
	{"currencysymbol", "\\p{Sc}"},
	{"modifiersymbol", "\\p{Sk}"},
	{"othersymbol", "\\p{So}"},
	{"separator", "\\p{Z}"},
	{"spaceseparator", "\\p{Zs}"},
	{"lineseparator", "\\p{Zl}"},
	{"paragraphseparator", "\\p{Zp}"},
	{"other", "\\p{C}"},
	{"control", "\\p{Cc}"},
	{"format", "\\p{Cf}"},
	{"unassigned", "\\p{Cn}"},
	{"privateuse", "\\p{Co}"},
	{"surrogate", "\\p{Cs}"},
	{"word", oniguruma_word},
	{"space", oniguruma_space},
	{"whitespace", oniguruma_space},
	{"digit", "\\p{Nd}"},
	{"xdigit", oniguruma_hex},
	{"alpha", "\\p{Alphabetic}"},
	{"alphabetic", "\\p{Alphabetic}"},
	{"alnum", "\\p{Alphabetic}\\p{Nd}"},
	{"upper", "\\p{Uppercase}"},
	{"lower", "\\p{Lowercase}"},
	{"uppercase", "\\p{Uppercase}"},
	{"lowercase", "\\p{Lowercase}"},
	{"punct", "\\p{P}"},
	{"blank", "\\x{9}\\p{Zs}"},
	{"cntrl", "\\p{Cc}"},
	{"any", "\\x{0}-\\x{10ffff}"},
	{"ascii", "\\x{0}-\\x{7f}"},
	{"assigned", "\\P{Cn}"},
	{"emoji", "\\p{Emoji}"},
	{"emojipresentation", "\\p{Emoji_Presentation}"},
	{"emojimodifier", "\\p{Emoji_Modifier}"},
	{"emojimodifierbase", "\\p{Emoji_Modifier_Base}"},
	{"emojicomponent", "\\p{Emoji_Component}"},
	{"extendedpictographic", "\\p{Extended_Pictographic}"},
	{"ideographic", "\\p{Ideographic}"},
	{"unifiedideograph", "\\p{Unified_Ideograph}"},
	{"idstart", "\\p{ID_Start}"},
	{"idcontinue", "\\p{ID_Continue}"},
	{"xidstart", "\\p{XID_Start}"},
	{"xidcontinue", "\\p{XID_Continue}"},
	{"math", "\\p{Math}"},
	{"dash", "\\p{Dash}"},
	{"diacritic", "\\p{Diacritic}"},
	{"extender", "\\p{Extender}"},
	{"quotationmark", "\\p{Quotation_Mark}"},
	{"variationselector", "\\p{Variation_Selector}"},
	{"regionalindicator", "\\p{Regional_Indicator}"},
	{"joincontrol", "\\p{Join_Control}"},
	{"cased", "\\p{Cased}"},
	{"caseignorable", "\\p{Case_Ignorable}"},
	{"graphemebase", "\\p{Grapheme_Base}"},
	{"graphemeextend", "\\p{Grapheme_Extend}"},
};

void oniguruma_put_property(
	struct oniguruma_source *source, const char *at, size_t n, struct bytes *items)
{
	char name[PROPERTY_NAME_MAX], text[PROPERTY_NAME_MAX + 8];
	size_t length = 0;

	for (size_t i = 0; i < n; i++) {
		if (at[i] == ' ' || at[i] == '_' || at[i] == '-')
			continue;
		if (!oniguruma_is_alnum(at[i]) || length == PROPERTY_NAME_MAX - 1) {
			oniguruma_refuse(source, "has a property that is not known");
			return;
		}
		name[length++] = oniguruma_lower(at[i]);
	}
	name[length] = '\0';
	for (size_t i = 0; i < sizeof(property_names) / sizeof(property_names[0]); i++) {
		if (strcmp(property_names[i].name, name) == 0) {
			bytes_put(items, property_names[i].items);
			return;
		}
	}
	if (name[0] >= 'a' && name[0] <= 'z')
		name[0] = (char)(name[0] - 'a' + 'A');
	if (length == 1 && strchr("LMNPSZC", name[0]))
		snprintf(text, sizeof(text), "\\p{%s}", name);
	else if (length == 2)
		snprintf(text, sizeof(text), "\\p{%s}", name);
	else
		snprintf(text, sizeof(text), "\\p{sc:%s}", name);
	bytes_put(items, text);
}

uint32_t oniguruma_categories(const char *text, size_t length)
{
	uint32_t bits = 0;
	size_t n = length - 4;

	if (length < 5 || memcmp(text, "\\p{", 3) != 0 || n > 2)
		return 0;
	for (size_t i = 0; i < ONIGURUMA_CATEGORIES; i++) {
		if (memcmp(property_categories[i], text + 3, n) == 0)
			bits |= 1u << i;
	}
	return bits;
}

void oniguruma_put_categories(struct bytes *items, uint32_t categories)
{
	for (size_t i = 0; i < ONIGURUMA_CATEGORIES; i++) {
		if (!(categories & 1u << i))
			continue;
		bytes_put(items, "\\p{");
		bytes_put(items, property_categories[i]);
		bytes_put(items, "}");
	}
}
