# Behind scdoc: identifiers must not be broken. .TH sets hyphenation back to the default.
/^[.]TH /a .nh
# Nor must options be broken at their hyphens.
:option
s/(--[a-z]+(\\-[a-z]+)*)-([a-z])/\1\\-\3/
t option
